// vkconv.backend._bridge: the Python face. What each name does is documented in vkconv/backend/_bridge.pyi.
#include "download.hpp"
#include "facts.hpp"
#include "gil.hpp"
#include "host_copy.hpp"
#include "recording.hpp"
#include "upload.hpp"

#include <pybind11/stl.h>

#include <new>

namespace vkconv {
namespace {

constexpr uint64_t kForeverNs = (uint64_t{1} << 63) - 1;

#ifdef __clang__
constexpr auto kCompiler = __VERSION__;
#else
constexpr auto kCompiler = "GCC " __VERSION__;
#endif
constexpr auto kPybind11 = PYBIND11_TOSTRING(PYBIND11_VERSION_MAJOR) "." PYBIND11_TOSTRING(
    PYBIND11_VERSION_MINOR) "." PYBIND11_TOSTRING(PYBIND11_VERSION_MICRO);

// kp's classes are found by name in pybind11's own registry; an empty slot there means that the two modules do not share it.
void import_kp() {
  py::module_ kp;
  try {
    kp = py::module_::import("kp");
  } catch (const py::error_already_set& error) {
    throw py::import_error("kp cannot be imported: " + std::string(py::str(error.value())));
  }
  if (py::detail::get_type_info(typeid(kp::Sequence)) != nullptr &&
      py::detail::get_type_info(typeid(kp::Manager)) != nullptr)
    return;
  throw py::import_error("kp at " + std::string(py::str(kp.attr("__file__"))) +
                         " was built with another pybind11 or compiler than this bridge (pybind11 " + kPybind11 + ", " +
                         kCompiler + "), so they cannot exchange objects");
}

py::dict build_info() {
  py::dict info;
  info["kompute"] = VKCONV_KP_VERSION;
  info["vulkan_headers"] = std::to_string(VK_VERSION_MAJOR(VK_HEADER_VERSION_COMPLETE)) + "." +
                           std::to_string(VK_VERSION_MINOR(VK_HEADER_VERSION_COMPLETE)) + "." +
                           std::to_string(VK_HEADER_VERSION);
  info["pybind11"] = kPybind11;
  info["compiler"] = kCompiler;
  return info;
}

py::list devices() {
  py::list list;
  try {
    const auto instance = Instance::get();
    for (const VkPhysicalDevice physical : instance->physical_devices()) list.append(device_facts(*instance, physical));
  } catch (const VulkanError& error) {
    // A loader without a driver answers that it is incompatible; a driver that gives no device is worth an error.
    if (error.result == "VK_ERROR_INITIALIZATION_FAILED")
      throw VulkanError(VK_ERROR_INITIALIZATION_FAILED, error.call,
                        "the installed Vulkan drivers give no device: none is there for them, or it did not start; "
                        "VK_LOADER_DEBUG=error,driver says more");
    if (error.result != "VK_ERROR_INCOMPATIBLE_DRIVER") throw;
  }
  return list;
}

py::object view(const Buffer& buffer) {
  const auto& core = buffer.core("Buffer.view");
  if (core->mapped == nullptr)
    throw VulkanError::misuse("Buffer.view", "a buffer of kind '" + buffer.kind() + "' is not visible to the host");
  try {
    return py::memoryview(py::cast(Mapping{core}));
  } catch (const py::error_already_set& error) {
    if (error.matches(PyExc_BufferError)) throw std::bad_alloc();  // as pybind11 says that there is no memory
    throw;
  }
}

}  // namespace
}  // namespace vkconv

PYBIND11_MODULE(_bridge, m) {
  using namespace vkconv;
  import_kp();
  register_errors(m);
  m.attr("BUILD") = build_info();
  m.def("devices", &devices);
  // Threads that copy must be gone before the interpreter is; at its end they would run while what they use is taken down.
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    const WithoutGil release;
    stop_copying();
  }));

  py::class_<Mapping>(m, "_Mapping", py::buffer_protocol()).def_buffer([](const Mapping& self) {
    return py::buffer_info(static_cast<uint8_t*>(self.core->mapped), static_cast<py::ssize_t>(self.core->nbytes));
  });

  py::class_<Buffer, std::shared_ptr<Buffer>>(m, "Buffer")
      .def_property_readonly("nbytes", &Buffer::nbytes)
      .def_property_readonly("kind", &Buffer::kind)
      .def_property_readonly("view", &view)
      .def_property_readonly("coherent", &Buffer::coherent)
      .def("flush", &Buffer::flush)
      .def("invalidate", &Buffer::invalidate)
      .def("write", &Buffer::write, py::arg("data"), py::arg("threads") = 1, py::arg("narrowed") = "")
      .def("read", &Buffer::read, py::arg("out").noconvert(), py::arg("threads") = 1, py::arg("widened") = "");

  py::class_<Upload, std::shared_ptr<Upload>>(m, "Upload")
      .def("write", &Upload::write, py::arg("data").none(true), py::arg("threads") = 1, py::arg("narrowed") = "",
           py::arg("recording").none(true) = nullptr);

  py::class_<Download, std::shared_ptr<Download>>(m, "Download")
      .def("read", &Download::read, py::arg("out").noconvert(), py::arg("threads") = 1, py::arg("spin_us") = 20.0,
           py::arg("widened") = "");

  py::class_<Image, std::shared_ptr<Image>>(m, "Image")
      .def_property_readonly("extent", &Image::extent)
      .def_property_readonly("format", &Image::format)
      .def_property_readonly("nbytes", &Image::nbytes);

  py::class_<Pipeline, std::shared_ptr<Pipeline>>(m, "Pipeline");

  py::class_<Recording, std::shared_ptr<Recording>>(m, "Recording")
      .def_property_readonly("sequence", &Recording::sequence)
      .def("dispatch",
           [](Recording& self, const Pipeline& pipeline, const std::vector<Recording::Bound>& buffers,
              const py::bytes& push, const std::array<uint32_t, 3>& groups) {
             self.dispatch(pipeline, buffers, push, groups);
           },
           py::arg("pipeline"), py::arg("buffers"), py::arg("push"), py::arg("groups"))
      .def("barrier", &Recording::barrier, py::arg("src"), py::arg("dst"))
      .def("copy", &Recording::copy, py::arg("src"), py::arg("src_offset"), py::arg("dst"), py::arg("dst_offset"),
           py::arg("nbytes"))
      .def("fill", &Recording::fill, py::arg("buffer"), py::arg("offset"), py::arg("nbytes"), py::arg("word"))
      .def("clear", &Recording::clear, py::arg("image"), py::arg("value"))
      .def("timestamp", &Recording::timestamp)
      .def("part", &Recording::part, py::arg("upload"), py::arg("nbytes"))
      .def("end", &Recording::end, py::arg("after") = std::vector<std::shared_ptr<Upload>>(),
           py::arg("then") = std::vector<std::shared_ptr<Download>>())
      .def("run", &Recording::run, py::arg("timeout_ns") = kForeverNs, py::arg("spin_us") = 20.0)
      .def("submit", &Recording::submit)
      .def("wait", &Recording::wait, py::arg("timeout_ns") = kForeverNs, py::arg("spin_us") = 20.0)
      .def_property_readonly("started", &Recording::started)
      .def_property_readonly("age_ns", &Recording::age_ns)
      .def("timestamps_ns", &Recording::timestamps_ns)
      .def("abandon", &Recording::abandon);

  py::class_<Interrupts, InterruptsPtr>(m, "Interrupts")
      .def(py::init<std::string, std::string>(), py::arg("address"), py::arg("root") = "")
      .def_property_readonly("cpus", &Interrupts::cpus)
      .def_property_readonly("moves", &Interrupts::moves)
      .def("elsewhere", &Interrupts::elsewhere, py::arg("allowed"))
      .def("step_aside", &Interrupts::step_aside)
      .def("read", &Interrupts::read)
      .def("refresh", &Interrupts::refresh);

  py::class_<Device, std::shared_ptr<Device>>(m, "Device")
      .def(py::init([](size_t index, const py::bytes& pipeline_cache, const std::vector<std::string>& disable,
                       const InterruptsPtr& interrupts) {
             return std::make_shared<Device>(index, pipeline_cache, disable, interrupts);
           }),
           py::arg("index"), py::kw_only(), py::arg("pipeline_cache") = py::bytes(),
           py::arg("disable") = std::vector<std::string>(), py::arg("interrupts").none(true) = nullptr)
      .def_property_readonly("facts", &Device::facts)
      .def_property_readonly("enabled", &Device::enabled)
      .def_property_readonly("manager", &Device::manager)
      .def_property_readonly("closed", &Device::closed)
      .def_property_readonly("pipeline_cache_loaded", &Device::pipeline_cache_loaded)
      .def("buffer", &Device::buffer, py::arg("nbytes"), py::arg("kind"))
      .def("imported", &Device::imported, py::arg("data"))
      .def("image", &Device::image, py::arg("width"), py::arg("height"), py::arg("depth"), py::arg("format"))
      .def("pipeline",
           [](Device& self, const py::bytes& spirv, const Pipeline::Bindings& bindings, uint32_t push_bytes,
              const std::vector<uint32_t>& spec, uint32_t subgroup_size) {
             return self.pipeline(spirv, bindings, push_bytes, spec, subgroup_size);
           },
           py::arg("spirv"), py::arg("bindings"), py::arg("push_bytes"), py::arg("spec") = std::vector<uint32_t>(),
           py::arg("subgroup_size") = 0)
      .def("pipeline_cache", [](const Device& self) { return py::bytes(self.pipeline_cache()); })
      .def("merge_pipeline_cache",
           [](const Device& self, const py::bytes& blob) { return py::bytes(self.merge_pipeline_cache(blob)); },
           py::arg("blob"))
      .def("recording", &Device::recording, py::arg("timestamps") = 0)
      .def("upload", &Device::upload, py::arg("staging"), py::arg("target"), py::arg("nbytes"), py::arg("chunk_bytes"))
      .def("download", &Device::download, py::arg("source"), py::arg("staging"), py::arg("nbytes"), py::arg("chunk_bytes"))
      .def("memory", &Device::memory)
      .def_property_readonly("interrupt_cpus", &Device::interrupt_cpus)
      .def_property_readonly("abandoned", &Device::abandoned)
      .def("wait_idle", [](Device& self) { self.wait_idle(UINT64_MAX); })
      .def("close", &Device::close)
      .def("__enter__", [](const std::shared_ptr<Device>& self) { return self; })
      .def("__exit__", [](Device& self, const py::args&) { self.close(); });
}
