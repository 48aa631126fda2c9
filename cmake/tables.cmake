# vkconv_add_tables(target): the bridge's tables of Vulkan structures, made at build from the registry of the very headers
# that it is compiled with.

function(vkconv_add_tables target)
    # Vulkan_INCLUDE_DIR is what Kompute found.
    find_file(VKCONV_VK_XML vk.xml
        HINTS "${Vulkan_INCLUDE_DIR}/.." PATH_SUFFIXES share/vulkan/registry
        DOC "Vulkan's registry, of the Vulkan headers' version")
    if(NOT EXISTS "${VKCONV_VK_XML}")
        message(FATAL_ERROR "Vulkan's registry vk.xml is missing (VKCONV_VK_XML is '${VKCONV_VK_XML}'). It comes with the Vulkan "
            "headers: install libvulkan-dev (Debian, Ubuntu), vulkan-headers (Fedora, Arch) or the Vulkan SDK, or set "
            "VKCONV_VK_XML to the vk.xml of the headers in '${Vulkan_INCLUDE_DIR}'.")
    endif()
    set(native "${CMAKE_SOURCE_DIR}/native")
    set(folder "${CMAKE_BINARY_DIR}/tables")
    set(made "${folder}/vulkan_tables.hpp" "${folder}/vulkan_tables.cpp")
    if(NOT TARGET vkconv_tables)
        add_custom_command(OUTPUT ${made}
            COMMAND "${Python_EXECUTABLE}" "${native}/make_tables.py" "${VKCONV_VK_XML}" "${native}/newer.xml" "${folder}"
            DEPENDS "${native}/make_tables.py" "${native}/newer.xml" "${VKCONV_VK_XML}"
            COMMENT "Making the bridge's tables from ${VKCONV_VK_XML}" VERBATIM)
        add_custom_target(vkconv_tables DEPENDS ${made})  # once, for all bridges
    endif()
    add_dependencies(${target} vkconv_tables)
    target_sources(${target} PRIVATE ${made})
    target_include_directories(${target} PRIVATE "${native}" "${folder}")
endfunction()
