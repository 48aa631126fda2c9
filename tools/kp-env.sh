# Source this before pip builds kp 0.9.0: `. tools/kp-env.sh` (inside the virtual environment, with pybind11==3.1.0 installed).
# kp's setup.py takes its CMake options from the environment only. The defaults clone git repositories, bind with pybind11 2.9.2
# and load the validation layer whenever it is installed.
export KOMPUTE_OPT_USE_BUILT_IN_VULKAN_HEADER=OFF
export KOMPUTE_OPT_USE_BUILT_IN_FMT=OFF
export KOMPUTE_OPT_USE_BUILT_IN_PYBIND11=OFF
export KOMPUTE_OPT_DISABLE_VULKAN_VERSION_CHECK=ON
export KOMPUTE_OPT_DISABLE_VK_DEBUG_LAYERS=ON
export KOMPUTE_OPT_INSTALL=OFF
export KOMPUTE_PYTHON_NUM_PARALLEL_THREADS="${KOMPUTE_PYTHON_NUM_PARALLEL_THREADS:-2}"
# A cached kp wheel may have been built with another pybind11, which the bridge cannot share types with.
export PIP_NO_CACHE_DIR=1
export PIP_NO_BINARY=kp
pybind11_DIR="$("${PYTHON:-python}" -m pybind11 --cmakedir)" || {
    echo "kp-env: ${PYTHON:-python} has no pybind11: run '${PYTHON:-python} -m pip install pybind11==3.1.0' and source this again" >&2
    return 1
}
export pybind11_DIR
