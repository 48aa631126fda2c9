"""The native bridge: Vulkan compute with every result checked, on Kompute's own objects (native/*.cpp).

Sizes and offsets are bytes. A wrong argument raises ValueError with both numbers of a broken limit, or
TypeError; a failed Vulkan call, or an object used when it must not be, raises VulkanError. Every object keeps
its device alive; after Device.close() each use of an object made from it raises VulkanError. Importing this
module imports kp and raises ImportError when kp was built with another pybind11 or compiler, so that the two
could not exchange objects.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypedDict

import kp
import numpy.typing as npt

class _Heap(TypedDict):
    size_bytes: int
    budget_bytes: int | None  # None without VK_EXT_memory_budget, as is the next
    usage_bytes: int | None

class _Enabled(TypedDict):
    features: list[str]
    extensions: list[str]

Scope = Literal["compute", "transfer", "host"]
Kind = Literal["device", "upload", "download", "input", "output", "streamed", "imported"]

BUILD: dict[str, str]
"""Versions this module was built with: kompute, vulkan_headers, pybind11, compiler."""

class VulkanError(RuntimeError):
    """A Vulkan call failed, or an object of the bridge was used when it must not be (closed, busy, not
    ended).
    """

    result: str
    """The VkResult, "VK_ERROR_INITIALIZATION_FAILED"; empty for misuse of the bridge itself."""
    call: str
    """The Vulkan function, or the method of the bridge."""

class OutOfMemoryError(VulkanError):
    """A buffer does not fit; both numbers are 0 where Vulkan gave none."""

    requested_bytes: int
    available_bytes: int

class DeviceLostError(VulkanError):
    """The device stopped. Its objects are of no more use: close it and create it anew."""

class TimeoutError_(VulkanError):  # noqa: N801, N818 (not to hide the builtin)
    """The device did not finish in the time allowed; it still works on the submission."""

def devices() -> list[dict[str, Any]]:
    """The facts of every physical device, in the loader's order; [] when there is no driver.

    Each is in the layout of Vulkan profile files: "properties" and "features" ({structure name: {field:
    value}}; flags are lists of names, UUIDs hex, enumerants names or, when newer than this module, decimal
    numbers), "extensions" ({name: version}), "queueFamilies", "memory" (memoryHeaps, memoryTypes), "formats" (those of
    images, {name: {"VkFormatProperties": {...}}}) and "cooperativeMatrices" (one dict per shape). A structure that the
    device cannot be asked for is absent.
    Raises VulkanError when the loader itself fails, or drivers are there and none of them gives a device.
    """

class Interrupts:
    """The CPUs that take the interrupts of a PCI device, whose address Linux writes as 0000:01:00.0: threads that poll
    or copy for the device step aside from them. There are none where /sys and /proc below `root` tell of none.
    """

    def __init__(self, address: str, root: str = "") -> None: ...
    @property
    def cpus(self) -> list[int]:
        """As last read."""
    @property
    def moves(self) -> int:
        """How often threads stepped aside."""
    def elsewhere(self, allowed: Sequence[int]) -> list[int]:
        """Of the CPUs that a thread may use, those that it goes to; [] where that leaves less than half of them."""
    def step_aside(self) -> bool:
        """Move the calling thread to another CPU if it is on one that takes interrupts and may leave it, and leave its
        affinity as it was; whether it moved.
        """
    def read(self) -> None:
        """Read the CPUs anew."""
    def refresh(self) -> None:
        """The same where they were read a second ago or more; waits for recordings do it."""

class Device:
    """A logical device with one compute queue, and every feature and extension enabled that the device offers
    and compute can use. robustBufferAccess stays off: a shader must keep to its buffers.

    `pipeline_cache` is what pipeline_cache() gave; one that is damaged or from another device or driver is
    ignored. `disable` names features, feature structures or extensions to leave off. `interrupts` stands for those
    that Linux tells of. Raises IndexError for an `index` without a device, ValueError for an unknown name in
    `disable`, VulkanError when the driver refuses.
    """

    def __init__(
        self,
        index: int,
        *,
        pipeline_cache: bytes = b"",
        disable: Sequence[str] = (),
        interrupts: Interrupts | None = None,
    ) -> None: ...
    @property
    def facts(self) -> dict[str, Any]:
        """As an item of devices()."""
    @property
    def enabled(self) -> _Enabled:
        """What the device was really created with."""
    @property
    def manager(self) -> kp.Manager:
        """Kompute's manager of this very device and queue. Do not use its sequences while a recording runs in
        another thread: kp takes no lock on the queue.
        """
    @property
    def closed(self) -> bool: ...
    @property
    def pipeline_cache_loaded(self) -> bool:
        """Whether the `pipeline_cache` given was used."""
    def buffer(self, nbytes: int, kind: Kind) -> Buffer:
        """Memory for storage and copies, not initialised.

        "device" is device-local, "upload" host-visible for writing in order (write-combined), "download"
        host-visible and cached where the device has that. "input" and "output" are for kernels and the host both:
        host-visible, "input" device-local where it can be, "output" cached and then device-local; they may not be
        coherent. "streamed" is device-local, and the target of an `upload`. Raises OutOfMemoryError when `nbytes` is
        over maxMemoryAllocationSize, the heap or its budget.
        """
    def imported(self, data: npt.NDArray[Any]) -> tuple[Buffer, int] | None:
        """The pages of the host that an array, whose elements lie in a row, lies in, as a buffer of kind "imported",
        and the array's first byte there. Kernels must only read it: other things of the process lie in the same pages.
        It keeps the array until it is gone and the device is done with it.

        None where the device has no VK_EXT_external_memory_host, where such memory is not coherent, and where the
        driver refuses these pages.
        """
    def image(self, width: int, height: int, depth: int, format: Literal["rgba32f", "rgba16f"]) -> Image:
        """A device-local image to sample, store and clear, not initialised; of two dimensions with a `depth` of 0.

        Raises ValueError for an extent over what the driver makes of the format, VulkanError for a format that it has
        no such images of, OutOfMemoryError as buffer() does.
        """
    def pipeline(
        self,
        spirv: bytes,
        bindings: int | str,
        push_bytes: int,
        spec: Sequence[int] = (),
        subgroup_size: int = 0,
    ) -> Pipeline:
        """A compute pipeline from a module with the entry point "main".

        Bindings of set 0 are so many storage buffers, or what the letters say, in order: b a storage buffer, s a
        sampled image with the device's nearest sampler, i a storage image. `spec[i]` is the 32 bits of the
        specialization constant with constant_id i. `subgroup_size` 0 leaves the size to the driver; another
        needs subgroupSizeControl. The GIL is released while the driver compiles. Raises ValueError for bytes
        that are no SPIR-V or a broken limit. The module itself is trusted: an invalid one may crash the
        driver.
        """
    def pipeline_cache(self) -> bytes:
        """The pipelines compiled so far, to be given to a later Device of the same hardware and driver."""
    def merge_pipeline_cache(self, blob: bytes) -> bytes:
        """As pipeline_cache(), together with the pipelines in `blob`, which another process may have saved
        meanwhile; a `blob` that is damaged or from another device or driver adds none.
        """
    def upload(self, staging: Buffer, target: Buffer, nbytes: int, chunk_bytes: int) -> Upload:
        """A way for `nbytes` from the beginning of one buffer, of kind "upload", to that of another, of kind
        "streamed", in chunks: on a queue of a family that only copies, where there is one. Raises VulkanError without
        timeline semaphores.
        """
    def download(self, source: Buffer, staging: Buffer, nbytes: int, chunk_bytes: int) -> Download:
        """The way back, from a buffer of kind "streamed" to one of kind "download": on a second queue of that family,
        so that nothing waits for kernels on the first, else on the queue of the kernels. Raises as `upload` does.
        """
    def recording(self, timestamps: int = 0) -> Recording:
        """A new recording with room for `timestamps` timestamps, at most 2^20. VulkanError if the queue has none."""
    def memory(self) -> list[_Heap]:
        """Each heap's size and, where known, what this process may use and uses now."""
    @property
    def interrupt_cpus(self) -> list[int]:
        """The CPUs that take the device's interrupts, as last read; [] where Linux tells of none."""
    @property
    def abandoned(self) -> int:
        """How many recordings were let go while the device worked on them, and are still at work."""
    def wait_idle(self) -> None:
        """Waits until the queue has finished everything; Ctrl-C interrupts it."""
    def close(self) -> None:
        """Waits for the queue, then releases everything made from the device. A view that is still looked at
        keeps its memory until it is gone. A second call does nothing.

        With abandoned work on the queue it waits for 2 s at most; what still runs then keeps its memory and the
        Vulkan device until it is done.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class Buffer:
    @property
    def nbytes(self) -> int: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def view(self) -> memoryview:
        """The mapped memory, writable, one byte per item; keeps the memory alive. VulkanError for kind
        "device".

        `np.frombuffer(buffer.view, dtype)` is an array on it. Device writes are seen after a barrier to
        "host", a wait and, where it is not coherent, `invalidate`.
        """
    @property
    def coherent(self) -> bool:
        """Whether host and device see each other's writes without `flush` and `invalidate`."""
    def flush(self) -> None:
        """Make what the host wrote visible to later submissions; nothing to do where the memory is coherent. Raises
        VulkanError for kind "device".
        """
    def invalidate(self) -> None:
        """Make what the device wrote visible to the host; as `flush` otherwise."""

    def write(self, data: npt.NDArray[Any], threads: int = 1, narrowed: str = "") -> None:
        """Copy an array, whatever its strides, to the beginning by so many threads of the host, its elements in a row,
        and flush. The GIL is released unless it is small. With ``narrowed``, "f16" or "bf16", an array of f32 becomes
        that on the way, rounded to nearest, ties to even. Raises ValueError for an array that does not fit, or is no
        f32 to be narrowed.
        """

    def read(self, out: npt.NDArray[Any], threads: int = 1, widened: str = "") -> None:
        """Invalidate, and copy the beginning into an array, whose elements lie in a row; as `write` otherwise. With
        ``widened``, "f16" or "bf16", an array of f32 is made of that."""

class Upload:
    """Chunks of one buffer on their way into another. Nobody may touch the target but recordings that come `after` it;
    the one who writes makes sure that none of them is at work."""

    def write(
        self,
        data: npt.NDArray[Any] | None,
        threads: int = 1,
        narrowed: str = "",
        recording: Recording | None = None,
    ) -> None:
        """Copy an array into staging by so many threads of the host, and let each chunk go to the device while the next
        ones are copied; None: staging as it is. It returns before the device is done. ``narrowed`` as for
        `Buffer.write`. Parts of ``recording`` that need bytes of this upload are submitted as soon as those are on
        their way: they begin a submission, which its run() or submit() ends. Raises ValueError unless the array has as
        many bytes.
        """

class Download:
    """A buffer on its way to the host, in chunks that come behind each submission of recordings that have it as
    `then`."""

    def read(self, out: npt.NDArray[Any], threads: int = 1, spin_us: float = 20.0, widened: str = "") -> None:
        """Copy what the last such submission left into an array by so many threads, each chunk while the next ones
        come; polls for each so long, then blocks. ``widened`` as for `Buffer.read`. VulkanError where nothing was
        submitted; ValueError unless the array has as many bytes, in a row.
        """

class Image:
    """Four floats a texel. Between recordings it is ready to be sampled, if it was ever written: recordings move it
    from layout to layout by themselves, and what it holds is dropped where it is stored or cleared after that.
    """

    @property
    def extent(self) -> tuple[int, int, int]:
        """Width, height, depth, as asked for."""
    @property
    def format(self) -> str: ...
    @property
    def nbytes(self) -> int:
        """What the driver takes for it."""

class Pipeline: ...

class Recording:
    """Commands recorded once and submitted many times. A second thread that uses a recording while one is
    inside a call of it gets VulkanError; different recordings of one device may run in different threads.
    One that is dropped while the device works on it is abandoned.
    """

    @property
    def sequence(self) -> kp.Sequence:
        """The Kompute sequence with the commands; after a change through kp run() raises VulkanError."""
    def dispatch(
        self,
        pipeline: Pipeline,
        buffers: Sequence[tuple[Buffer, int, int] | Image],
        push: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        """Binding i is `buffers[i]` = (buffer, offset, nbytes), or an image, in a descriptor set of this dispatch's
        own.

        Raises ValueError unless counts, `push`, offset alignment, ranges and workgroup counts (at least 1)
        fit the pipeline and the device.
        """
    def barrier(self, src: Sequence[Scope], dst: Sequence[Scope]) -> None:
        """What came before in `src` finishes, and its writes are visible to reads and writes in `dst` that
        come after.
        """
    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None: ...
    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        """Writes the 32-bit `word` throughout. Offset and size are multiples of 4; a range up to the buffer's
        end may be shorter by less than a word.
        """
    def clear(self, image: Image, value: float) -> None:
        """Every channel of every texel becomes `value`."""
    def timestamp(self) -> int:
        """Records a timestamp that is taken when all that came before has finished; returns its index."""
    def part(self, upload: Upload, nbytes: int) -> None:
        """What was recorded up to here needs no more of the device's inputs than the first ``nbytes`` of an upload: it
        is a part of each submission that waits for those alone. Barriers and timestamps order what is in several parts
        as if they were one. Raises ValueError unless parts need more and more bytes of one upload.
        """
    def end(self, after: Sequence[Upload] = (), then: Sequence[Download] = ()) -> None:
        """Ends recording: needed once before run() or submit(). Each submission then waits, on the device, for what the
        uploads `after` were given last, and the downloads `then` follow it, which are over before the next one.
        """
    def run(self, timeout_ns: int = ..., spin_us: float = 20.0) -> None:
        """Submits and waits with the GIL released: polls for `spin_us`, then blocks. Where the submissions before took
        longer than that, it sleeps first until half of `spin_us` are left of what they took.

        A signal handler's exception (Ctrl-C) ends the wait, TimeoutError_ tells a time-out; either way the
        device works on, the recording refuses to be submitted again until it has finished, and wait() waits
        for it. Raises DeviceLostError.
        """
    def submit(self) -> None:
        """The first half of run()."""
    @property
    def started(self) -> bool:
        """Whether there is something to wait for: a submission whose end nobody has seen, or parts of one."""
    @property
    def age_ns(self) -> float:
        """Nanoseconds since the last submission was made, or the first part of it."""
    def wait(self, timeout_ns: int = ..., spin_us: float = 20.0) -> bool:
        """The second half of run(), also of a submission that no more than parts were made of; False on a time-out.
        Returns at once when the last submission has
        finished, and raises its error again when that failed.
        """
    def timestamps_ns(self) -> list[float]:
        """Times of the last completed submission relative to its first timestamp, in nanoseconds. VulkanError
        before one.
        """
    def abandon(self) -> None:
        """Lets the recording go without waiting: every further use but this one raises VulkanError.

        Vulkan cannot stop work that it was given. What the device works on keeps its buffers until it is done
        (they are freed when the bridge is next asked for memory, or to submit), and later submissions to the
        device come after it.
        """
