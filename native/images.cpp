// Images: their formats and limits are checked here, before the driver sees them.
#include "memory.hpp"

namespace vkconv {
namespace {

VkFormat format_of(const std::string& name) {
  for (const Format& item : kFormats)
    if (name == item.name) return item.format;
  throw py::value_error("an image's format must be 'rgba32f' or 'rgba16f', not '" + name + "'");
}

// Throws unless the driver makes such an image of this size.
void check_format(const Core& core, const VkImageCreateInfo& info, const std::string& name) {
  VkImageFormatProperties offered{};
  const VkResult result = vkGetPhysicalDeviceImageFormatProperties(core.physical, info.format, info.imageType, info.tiling,
                                                                   info.usage, 0, &offered);
  if (result == VK_ERROR_FORMAT_NOT_SUPPORTED)
    throw VulkanError(result, "Device.image", "the device has no images of " + name + " to sample, store and clear");
  check(result, "vkGetPhysicalDeviceImageFormatProperties");
  const uint32_t asked[] = {info.extent.width, info.extent.height, info.extent.depth};
  const uint32_t most[] = {offered.maxExtent.width, offered.maxExtent.height, offered.maxExtent.depth};
  for (size_t axis = 0; axis < 3; ++axis)
    VKCONV_REQUIRE(asked[axis] <= most[axis], "an image of " << asked[0] << " x " << asked[1] << " x " << asked[2] << " "
                                                             << name << " is over " << most[axis] << " on axis " << axis);
}

}  // namespace

Image::Image(const CorePtr& core, uint32_t width, uint32_t height, uint32_t depth, const std::string& format)
    : extent_{width, height, depth}, format_(format) {
  VkImageCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO;
  info.imageType = depth == 0 ? VK_IMAGE_TYPE_2D : VK_IMAGE_TYPE_3D;
  info.format = format_of(format);
  info.extent = {width, height, depth == 0 ? 1 : depth};
  info.mipLevels = 1;
  info.arrayLayers = 1;
  info.samples = VK_SAMPLE_COUNT_1_BIT;
  info.tiling = VK_IMAGE_TILING_OPTIMAL;
  info.usage = VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT;
  info.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
  info.initialLayout = VK_IMAGE_LAYOUT_UNDEFINED;
  VKCONV_REQUIRE(width > 0 && height > 0, "an image of " << width << " x " << height << " has no texel");
  check_format(*core, info, format);

  auto made = std::make_shared<ImageCore>();
  made->core = core;
  made->dims = depth == 0 ? 2 : 3;
  made->memory = decltype(made->memory)(core);
  made->image = decltype(made->image)(core);
  made->view = decltype(made->view)(core);
  check(vkCreateImage(core->handle, &info, nullptr, made->image.out()), "vkCreateImage");
  VkMemoryRequirements need;
  vkGetImageMemoryRequirements(core->handle, made->image.get(), &need);
  nbytes_ = need.size;
  if (need.size > core->max_allocation_bytes) {
    Text text;
    text << "an image of " << need.size << " bytes is over maxMemoryAllocationSize " << core->max_allocation_bytes;
    throw VulkanError::out_of_memory("Device.image", need.size, core->max_allocation_bytes, text.str());
  }
  allocate(*core, "image", need, memory_wish("device"), made->memory.out());
  check(vkBindImageMemory(core->handle, made->image.get(), made->memory.get(), 0), "vkBindImageMemory");

  VkImageViewCreateInfo view{};
  view.sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO;
  view.image = made->image.get();
  view.viewType = depth == 0 ? VK_IMAGE_VIEW_TYPE_2D : VK_IMAGE_VIEW_TYPE_3D;
  view.format = info.format;
  view.subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};
  check(vkCreateImageView(core->handle, &view, nullptr, made->view.out()), "vkCreateImageView");
  core_ = std::move(made);
}

const std::shared_ptr<ImageCore>& Image::core(const char* call) const {
  if (!core_) throw VulkanError::misuse(call, "the image's device is closed");
  return core_;
}

}  // namespace vkconv
