// Work without Python's lock.
#pragma once

#include <pybind11/pybind11.h>

#include <unistd.h>

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace vkconv {

// As py::gil_scoped_release, for daemon threads too: where one comes back while the interpreter ends, Python before 3.14
// unwinds its stack, which a destructor must not let through, so that the process would abort. Such a thread rests here,
// as it does from 3.14 on, until the process is gone.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  ~WithoutGil() {
#ifdef __GLIBCXX__
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      while (true) pause();
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }

 private:
  PyThreadState* state_;
};

}  // namespace vkconv
