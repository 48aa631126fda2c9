# vkconv_add_kompute(): the targets kompute::kompute and kp, its Python module, built from kp's sdist.
#
# The bridge and kp exchange C++ objects, so both must be compiled from the same source, by one compiler with one pybind11:
# a kp that pip built elsewhere may not be. The sdist is the file that
# KP_SDIST (a CMake or environment variable) names, else pip fetches it from the package index that pip is configured with.

set(KP_VERSION 0.9.0)
set(KP_SHA256 98e583dc6e9731ff6d7a3e3317817e4d93f7b2945929619e29a56325db279949)
set(KP_SDIST "$ENV{KP_SDIST}" CACHE FILEPATH "kp ${KP_VERSION} source archive; empty: pip downloads it")

function(vkconv_fetch_kp_sdist out)
    set(folder "${CMAKE_BINARY_DIR}/kp-sdist")
    set(archive "${folder}/kp-${KP_VERSION}.tar.gz")
    if(NOT EXISTS "${archive}")
        # pip prepares metadata even for a bare download; without isolation it uses the setuptools that is here.
        execute_process(
            COMMAND "${Python_EXECUTABLE}" -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation
                    --dest "${folder}" "kp==${KP_VERSION}"
            RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
        if(NOT status EQUAL 0)
            message(FATAL_ERROR "pip could not download the kp ${KP_VERSION} sdist (exit status ${status}).\n${output}\n"
                "Offline? Set KP_SDIST to the path of kp-${KP_VERSION}.tar.gz.")
        endif()
    endif()
    set(${out} "${archive}" PARENT_SCOPE)
endfunction()

# vkconv_build_in_batches(target): several sources at a time for each compiler. Most of its time goes into the headers of
# Vulkan, Kompute and pybind11.
function(vkconv_build_in_batches target)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
endfunction()

function(vkconv_add_kompute)
    foreach(header vulkan/vulkan.hpp fmt/core.h)
        find_file(VKCONV_HEADER "${header}" HINTS "$ENV{VULKAN_SDK}/include")
        if(NOT VKCONV_HEADER)
            message(FATAL_ERROR "The header ${header} is missing. Install libvulkan-dev and libfmt-dev (Debian, Ubuntu), vulkan-headers, "
                "vulkan-loader-devel and fmt-devel (Fedora), or vulkan-headers, vulkan-icd-loader and fmt (Arch).")
        endif()
        unset(VKCONV_HEADER CACHE)
    endforeach()
    set(archive "${KP_SDIST}")
    if(NOT archive)
        vkconv_fetch_kp_sdist(archive)
    endif()
    if(NOT EXISTS "${archive}")
        message(FATAL_ERROR "KP_SDIST names '${archive}', which does not exist.")
    endif()
    file(SHA256 "${archive}" digest)
    if(NOT digest STREQUAL KP_SHA256)
        message(FATAL_ERROR "'${archive}' is not the kp ${KP_VERSION} sdist: its sha256 is ${digest}, expected ${KP_SHA256}. "
            "Delete it, or set KP_SDIST to the right file.")
    endif()
    set(source "${CMAKE_BINARY_DIR}/kp-${KP_VERSION}")
    if(NOT EXISTS "${source}/CMakeLists.txt")
        file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${CMAKE_BINARY_DIR}")
    endif()

    # Kompute reads its options from the environment before the cache, so an exported KOMPUTE_OPT_* could change the build.
    foreach(name BUILD_PYTHON INSTALL USE_SPDLOG USE_BUILT_IN_FMT USE_BUILT_IN_VULKAN_HEADER)
        set(ENV{KOMPUTE_OPT_${name}} OFF)
    endforeach()
    foreach(name DISABLE_VK_DEBUG_LAYERS DISABLE_VULKAN_VERSION_CHECK)
        set(ENV{KOMPUTE_OPT_${name}} ON)
    endforeach()
    set(ENV{KOMPUTE_OPT_LOG_LEVEL} Off)
    set(CMAKE_POSITION_INDEPENDENT_CODE ON)
    set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
    add_subdirectory("${source}" "${CMAKE_BINARY_DIR}/kompute" EXCLUDE_FROM_ALL)
    # Kompute compiles itself with -Werror, which a newer compiler or newer Vulkan headers turn into a failure.
    target_compile_options(kompute PRIVATE -Wno-error)
    vkconv_build_in_batches(kompute)
    # vk::to_string formats through a stream; native/errors.hpp says why the bridge must hold none.
    target_compile_definitions(kompute PUBLIC VULKAN_HPP_NO_TO_STRING)

    pybind11_add_module(kp MODULE "${source}/python/src/main.cpp")
    target_compile_options(kp PRIVATE -w)
    target_compile_definitions(kp PRIVATE KOMPUTE_DISABLE_VK_DEBUG_LAYERS=1 KOMPUTE_OPT_LOG_LEVEL_DISABLED=1)
    target_link_libraries(kp PRIVATE kompute::kompute)
endfunction()
