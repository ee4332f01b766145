/* A CUDA device that is none, to test without a GPU what the host does with
 * one.
 *
 * Memory of the device is mapped twice: where the host sees it nothing may be
 * touched, so that a host which does is ended by SIGSEGV; streams use the other
 * place. It is full of rubbish when it is given out. A stream is a thread that
 * starts late and at random, so that whoever forgets to wait finds rubbish.
 * Pinned memory is read and written when a copy runs, plain memory before its
 * call returns, as with CUDA.
 *
 * FAKE_CUDA_RATE: bytes/s that operators and copies read and write; else they take no
 * longer than they do here. FAKE_CUDA_DEVICES=0: there is no device. FAKE_CUDA_DRIVER=11080: the driver is one for CUDA
 * 11.8, and older than this runtime; 0: there is none. FAKE_CUDA_IMAGE=0: no kernel can run on the device.
 * FAKE_CUDA_BUS, FAKE_CUDA_UUID: its PCI bus id, and up to 16 characters for its UUID; else a process has a device of its
 * own. FAKE_CUDA_BYTES: how much memory it has. FAKE_CUDA_LATE: the most a stream waits before each piece of work, in
 * us. fake_cuda_launches() and fake_cuda_fail_launch(k): how many launches
 * there were, and that the k-th from now on, from 1, does not take place; fake_cuda_allocations() and
 * fake_cuda_fail_allocation(k): the same of memory, the device's and pinned.
 * fake_cuda_lend(p, n): host memory that is the device's, too, until it is lent
 * with n = 0; for what has no memory elsewhere.
 *
 * The first launch of a kernel loads it, unless cudaFuncGetAttributes() has: it
 * waits for all streams. So do frees and what pins memory.
 *
 * Work put on a stream that is captured is not run, and no graph is made of it.
 * While a thread captures, allocations, frees, queries and waits fail and spoil
 * the capture, on the threads that CUDA says
 * (cudaThreadExchangeStreamCaptureMode). */
#include "tests/fake/fake_cuda.h"
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace
{

constexpr size_t ALIGNED = 256;

long setting(const char *name, long otherwise)
{
	const char *v = getenv(name);
	return v ? atol(v) : otherwise;
}

/* One block of address space, given out from the front; what was freed is not
 * used again, so that a use after it shows. */
struct arena {
	std::mutex lock;
	size_t bytes = size_t(setting("FAKE_CUDA_BYTES", 2l << 30)), used = 0, live = 0;
	char *seen = nullptr, *real = nullptr;
	std::map<size_t, size_t> blocks;
	std::map<const char *, size_t> lent;

	arena()
	{
		size_t room = bytes * 8; /* room for addresses */
		int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
		if (fd < 0 || ftruncate(fd, off_t(room)))
			fake_die("no memory for a device");
		seen = static_cast<char *>(mmap(nullptr, room, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0));
		real = static_cast<char *>(mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
		                                0));
		close(fd);
		if (seen == MAP_FAILED || real == MAP_FAILED)
			fake_die("no addresses for a device");
	}
	/* Where the lent range that p is in ends, or NULL. With the lock held. */
	const char *end_of_lent(const void *p)
	{
		auto b = lent.upper_bound(static_cast<const char *>(p));
		return b != lent.begin() && p < (--b)->first + b->second ? b->first + b->second : nullptr;
	}
	void lend(const void *p, size_t n)
	{
		std::lock_guard<std::mutex> hold(lock);
		lent.erase(static_cast<const char *>(p));
		if (n)
			lent[static_cast<const char *>(p)] = n;
	}
	bool has(const void *p)
	{
		if (p >= seen && p < seen + bytes * 8)
			return true;
		std::lock_guard<std::mutex> hold(lock);
		return end_of_lent(p);
	}
	void *alloc(size_t n)
	{
		std::lock_guard<std::mutex> hold(lock);
		size_t whole = (n + ALIGNED - 1) / ALIGNED * ALIGNED + ALIGNED;
		if (live + n > bytes || used + whole > bytes * 8)
			return nullptr;
		size_t at = used;
		used += whole;
		live += n;
		blocks[at] = n;
		memset(real + at, 0xa7, n);
		return seen + at;
	}
	void free(void *p)
	{
		std::lock_guard<std::mutex> hold(lock);
		auto b = blocks.find(size_t(static_cast<char *>(p) - seen));
		if (b == blocks.end())
			fake_die("cudaFree() of what was not allocated");
		live -= b->second;
		blocks.erase(b);
	}
	void *at(const void *p, size_t n)
	{
		std::lock_guard<std::mutex> hold(lock);
		const char *end = end_of_lent(p);
		if (end && static_cast<const char *>(p) + n <= end)
			return const_cast<void *>(p);
		size_t from = size_t(static_cast<const char *>(p) - seen);
		auto b = blocks.upper_bound(from);
		if (b == blocks.begin() || from + n > (--b)->first + b->second)
			fake_die("work on a stream touches device memory that is not allocated");
		return real + from;
	}
};

arena &device()
{
	static arena *a = new arena;
	return *a;
}

struct pins {
	std::mutex lock;
	std::map<const char *, size_t> blocks;
	bool has(const void *p, size_t n)
	{
		std::lock_guard<std::mutex> hold(lock);
		const char *c = static_cast<const char *>(p);
		auto b = blocks.upper_bound(c);
		return b != blocks.begin() && c + n <= (--b)->first + b->second;
	}
};

pins &pinned()
{
	static pins *p = new pins;
	return *p;
}

/* Work is numbered from 1. */
struct stream {
	std::mutex lock;
	std::condition_variable change;
	std::deque<std::function<void()>> work;
	uint64_t given = 0, done = 0;
	uint64_t random = 88172645463325252u;
	std::atomic<int> capturing{0}; /* enum cudaStreamCaptureStatus */
	cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeRelaxed;
	std::thread::id captured_by;
	bool held = false;

	void run()
	{
		const uint64_t late = uint64_t(setting("FAKE_CUDA_LATE", 60));
		for (;;) {
			std::function<void()> next;
			{
				std::unique_lock<std::mutex> hold(lock);
				change.wait(hold, [&] { return !work.empty() && !held; });
				next = std::move(work.front());
				work.pop_front();
			}
			random ^= random << 13, random ^= random >> 7, random ^= random << 17;
			if (late && random % 4 == 0)
				usleep(useconds_t(random / 7 % late));
			next();
			next = nullptr;
			std::lock_guard<std::mutex> hold(lock);
			done++;
			change.notify_all();
		}
	}
	uint64_t put(std::function<void()> w)
	{
		std::lock_guard<std::mutex> hold(lock);
		if (capturing)
			return given;
		work.push_back(std::move(w));
		change.notify_all();
		return ++given;
	}
	void wait(uint64_t until)
	{
		std::unique_lock<std::mutex> hold(lock);
		change.wait(hold, [&] { return done >= until; });
	}
	bool has(uint64_t n)
	{
		std::lock_guard<std::mutex> hold(lock);
		return done >= n;
	}
	uint64_t last()
	{
		std::lock_guard<std::mutex> hold(lock);
		return given;
	}
};

/* Never freed: events may name one that is gone. */
stream *new_stream()
{
	stream *s = new stream;
	std::thread([s] { s->run(); }).detach();
	return s;
}

std::mutex streams_lock;
std::map<stream *, bool> &streams()
{
	static auto *all = new std::map<stream *, bool>;
	return *all;
}

stream *of(cudaStream_t s)
{
	std::lock_guard<std::mutex> hold(streams_lock);
	if (!s) {
		static stream *usual = new_stream();
		streams()[usual] = true;
		return usual;
	}
	stream *found = reinterpret_cast<stream *>(s);
	if (!streams().count(found))
		fake_die("a stream that does not exist, or no more");
	return found;
}

struct event {
	std::mutex lock;
	stream *on = nullptr;
	uint64_t number = 0;
	bool captured = false; /* recorded in a capture */
	/* When it came; of the latest recording, as the rest. */
	std::shared_ptr<std::atomic<int64_t>> came;
	void record(stream *s)
	{
		auto when = std::make_shared<std::atomic<int64_t>>(0);
		uint64_t n = s->put([when] {
			*when = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now()
			                                                                     .time_since_epoch())
			                .count();
		});
		std::lock_guard<std::mutex> hold(lock);
		on = s, number = n, came = when, captured = s->capturing;
	}
	int64_t time()
	{
		std::lock_guard<std::mutex> hold(lock);
		return came ? came->load() : 0;
	}
	/* Returns true when it was recorded in a capture. */
	bool get(stream **s, uint64_t *n)
	{
		std::lock_guard<std::mutex> hold(lock);
		*s = on, *n = number;
		return captured;
	}
};

event *of(cudaEvent_t e)
{
	if (!e)
		fake_die("an event that is NULL");
	return reinterpret_cast<event *>(e);
}

thread_local cudaError_t last_error;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* What a call that may be unsafe beside a capture comes to on this thread; see
 * cudaThreadExchangeStreamCaptureMode() in CUDA's manual. */
cudaError_t allowed()
{
	std::lock_guard<std::mutex> hold(streams_lock);
	cudaError_t e = cudaSuccess;
	for (auto &each : streams()) {
		stream *s = each.first;
		if (!s->capturing || thread_mode == cudaStreamCaptureModeRelaxed)
			continue;
		bool own = s->captured_by == std::this_thread::get_id();
		if (own ? s->capture_mode == cudaStreamCaptureModeRelaxed
		        : thread_mode != cudaStreamCaptureModeGlobal || s->capture_mode != cudaStreamCaptureModeGlobal)
			continue;
		s->capturing = cudaStreamCaptureStatusInvalidated;
		e = last_error = cudaErrorStreamCaptureUnsupported;
	}
	return e;
}

/* The same of a call that asks about this stream, or about an event recorded
 * there. */
cudaError_t allowed(stream *on, bool captured)
{
	if (!captured)
		return allowed();
	if (on->capturing)
		on->capturing = cudaStreamCaptureStatusInvalidated;
	return last_error = cudaErrorStreamCaptureUnsupported;
}

std::atomic<long> allocations, on_device, waits, launches, fails_at, out_at;

/* CUDA frees memory, and pins and unpins it, when the device has done all that
 * it has. */
void await_all()
{
	waits++;
	std::map<stream *, bool> all;
	{
		std::lock_guard<std::mutex> hold(streams_lock);
		all = streams();
	}
	for (auto &s : all)
		s.first->wait(s.first->last());
}

constexpr int RUNTIME = 12000;

/* Why there is no device; success: there is one. */
cudaError_t absent()
{
	if (setting("FAKE_CUDA_DRIVER", RUNTIME) < RUNTIME)
		return cudaErrorInsufficientDriver;
	return setting("FAKE_CUDA_DEVICES", 1) < 1 ? cudaErrorNoDevice : cudaSuccess;
}

/* Counts what asks for memory; true: it gets none. */
bool out_of_memory()
{
	return ++allocations == out_at;
}

} // namespace

namespace
{
std::mutex kernels_lock;
/* By what launches name them: whether they are loaded. */
std::map<const void *, bool> &kernels()
{
	static auto *all = new std::map<const void *, bool>;
	return *all;
}
} // namespace

void fake_load(const void *kernel)
{
	std::lock_guard<std::mutex> hold(kernels_lock);
	auto k = kernels().find(kernel);
	if (k == kernels().end())
		fake_die("a launch of a kernel that CUDA has not heard of");
	if (!k->second)
		await_all();
	k->second = true;
}

static double seconds()
{
	using namespace std::chrono;
	return duration<double>(steady_clock::now().time_since_epoch()).count();
}

/* What is under way has each had `served` bytes, of those that were to be had since the first of all began; it is over
 * when that is what it wanted. */
class shared_rate
{
	const double rate; /* bytes/s; 0: no limit */
	std::mutex lock;
	double served = 0, at = seconds();
	std::multiset<double> ends;

	/* Returns in how many seconds the next one is over, as things are. */
	double next() const { return (*ends.begin() - served) * double(ends.size()) / rate; }

	void go_on()
	{
		double left = seconds() - at;
		at += left;
		while (!ends.empty() && left > 0) {
			const double first = next(), takes = std::min(left, std::max(first, 0.0));
			served += takes * rate / double(ends.size());
			left -= takes;
			if (takes < first)
				return;
			served = *ends.begin();
			ends.erase(ends.begin());
		}
	}

      public:
	explicit shared_rate(const char *name) : rate(getenv(name) ? atof(getenv(name)) : 0) {}
	bool limits() const { return rate > 0; }
	double begin(double bytes)
	{
		std::lock_guard<std::mutex> hold(lock);
		go_on();
		const double end = served + bytes;
		ends.insert(end);
		return end;
	}
	void wait(double end)
	{
		for (;;) {
			double left;
			{
				std::lock_guard<std::mutex> hold(lock);
				go_on();
				if (served >= end)
					return;
				left = next();
			}
			std::this_thread::sleep_for(std::chrono::duration<double>(left));
		}
	}
};

static shared_rate *rate_of(const char *name)
{
	static std::mutex lock;
	static auto *all = new std::map<std::string, shared_rate>;
	std::lock_guard<std::mutex> hold(lock);
	return &all->try_emplace(name, name).first->second;
}

fake_time::fake_time(double bytes, const char *rate) : of(rate_of(rate)), end(of->limits() ? of->begin(bytes) : 0)
{
}

fake_time::~fake_time()
{
	if (of->limits())
		of->wait(end);
}

void fake_die(const char *what)
{
	printf("Bail out! fake CUDA: %s\n", what);
	fflush(stdout);
	abort();
}

bool fake_launch()
{
	if (++launches != fails_at)
		return true;
	last_error = cudaErrorInvalidConfiguration;
	return false;
}

bool fake_plain(const void *p)
{
	return p && !device().has(p) && !pinned().has(p, 1);
}

void *fake_at(const void *p, size_t bytes)
{
	if (!p || device().has(p))
		return p ? device().at(p, bytes) : nullptr;
	if (!pinned().has(p, bytes))
		fake_die("work on a stream touches host memory that is not pinned");
	return const_cast<void *>(p);
}

void fake_enqueue(cudaStream_t s, std::function<void()> work)
{
	of(s)->put(std::move(work));
}

extern "C" {

long fake_cuda_allocations(void)
{
	return allocations;
}

/* Counts those of device memory. */
long fake_cuda_mallocs(void)
{
	return on_device;
}

long fake_cuda_launches(void)
{
	return launches;
}

void fake_cuda_fail_launch(long k)
{
	fails_at = k > 0 ? launches + k : 0;
}

void fake_cuda_fail_allocation(long k)
{
	out_at = k > 0 ? allocations + k : 0;
}

void fake_cuda_lend(const void *p, size_t bytes)
{
	device().lend(p, bytes);
}

/* Calls that return when the device has done something. */
long fake_cuda_waits(void)
{
	return waits;
}

const char *cudaGetErrorString(cudaError_t e)
{
	switch (e) {
	case cudaSuccess:
		return "no error";
	case cudaErrorMemoryAllocation:
		return "out of memory";
	case cudaErrorInvalidConfiguration:
		return "invalid configuration argument";
	case cudaErrorInsufficientDriver:
		return "CUDA driver version is insufficient for CUDA runtime version";
	case cudaErrorNoKernelImageForDevice:
		return "no kernel image is available for execution on the device";
	case cudaErrorNoDevice:
		return "no CUDA-capable device is detected";
	case cudaErrorNotReady:
		return "device not ready";
	case cudaErrorStreamCaptureUnsupported:
		return "operation not permitted when stream is capturing";
	case cudaErrorStreamCaptureInvalidated:
		return "operation failed due to a previous error during capture";
	case cudaErrorStreamCaptureIsolation:
		return "dependency created on uncaptured work in another stream";
	case cudaErrorCapturedEvent:
		return "operation not permitted on an event last recorded in a capturing "
		       "stream";
	default:
		return "invalid argument";
	}
}

void __cudaRegisterFunction(void **, const char *kernel, char *, const char *, int, uint3 *, uint3 *, dim3 *, dim3 *,
                            int *)
{
	std::lock_guard<std::mutex> hold(kernels_lock);
	kernels()[kernel] = false;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *kernel)
{
	*a = {};
	if (cudaError_t e = allowed())
		return e;
	{
		std::lock_guard<std::mutex> hold(kernels_lock);
		if (!kernels().count(kernel))
			return cudaErrorInvalidDeviceFunction;
	}
	if (!setting("FAKE_CUDA_IMAGE", 1))
		return last_error = cudaErrorNoKernelImageForDevice;
	fake_load(kernel);
	return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = int(setting("FAKE_CUDA_DRIVER", RUNTIME)); /* a driver is there without a device, too */
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = RUNTIME;
	return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	const cudaError_t e = last_error;
	last_error = cudaSuccess;
	return e;
}

cudaError_t cudaGetDeviceCount(int *n)
{
	*n = absent() ? 0 : 1;
	return absent();
}

cudaError_t cudaGetDevice(int *id)
{
	*id = 0;
	return absent();
}

cudaError_t cudaSetDevice(int id)
{
	return id ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int room, int device)
{
	const char *given = getenv("FAKE_CUDA_BUS");
	const unsigned own = unsigned(getpid());
	if (device || room < 13)
		return cudaErrorInvalidValue;
	snprintf(id, size_t(room), "%04x:%02x:00.0", own >> 8 & 0xffff, own & 0xff);
	if (given)
		snprintf(id, size_t(room), "%s", given);
	return absent();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
	const char *given = getenv("FAKE_CUDA_UUID");
	const std::string uuid = given ? given : std::to_string(getpid());
	*p = {};
	p->major = 9;
	strcpy(p->name, "a fake");
	p->totalGlobalMem = ::device().bytes;
	memcpy(p->uuid.bytes, uuid.data(), std::min(uuid.size(), sizeof p->uuid.bytes));
	return device ? cudaErrorInvalidDevice : absent();
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
	*p = nullptr;
	if (cudaError_t e = allowed())
		return e;
	on_device++;
	if (cudaError_t e = absent())
		return e;
	*p = out_of_memory() ? nullptr : device().alloc(bytes ? bytes : 1);
	return *p ? cudaSuccess : last_error = cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *p)
{
	if (!p)
		return cudaSuccess;
	if (cudaError_t e = allowed())
		return e;
	await_all();
	device().free(p);
	return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
	if (cudaError_t e = allowed())
		return e;
	if (cudaError_t e = out_of_memory() ? cudaErrorMemoryAllocation : absent())
		return last_error = e;
	await_all();
	if (posix_memalign(p, 4096, bytes ? bytes : 1))
		return cudaErrorMemoryAllocation;
	memset(*p, 0xb7, bytes);
	std::lock_guard<std::mutex> hold(pinned().lock);
	pinned().blocks[static_cast<char *>(*p)] = bytes;
	return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
	if (cudaError_t e = allowed())
		return e;
	await_all();
	{
		std::lock_guard<std::mutex> hold(pinned().lock);
		if (!pinned().blocks.erase(static_cast<char *>(p)))
			fake_die("cudaFreeHost() of what was not allocated");
	}
	free(p);
	return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
	*a = {};
	if (cudaError_t e = absent())
		return e;
	a->type = device().has(p)      ? cudaMemoryTypeDevice
	          : pinned().has(p, 1) ? cudaMemoryTypeHost
	                               : cudaMemoryTypeUnregistered;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
	if (cudaError_t e = absent())
		return e;
	stream *made = new_stream();
	std::lock_guard<std::mutex> hold(streams_lock);
	streams()[made] = true;
	*s = reinterpret_cast<cudaStream_t>(made);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most)
{
	*least = 0, *most = -5;
	return absent();
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority)
{
	return priority > 0 || priority < -5 ? cudaErrorInvalidValue : cudaStreamCreateWithFlags(s, flags);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *state)
{
	*state = cudaStreamCaptureStatus(of(s)->capturing.load());
	return cudaSuccess;
}

/* The stream does nothing until it is let go. */
void fake_cuda_hold(cudaStream_t s, int on)
{
	stream *held = of(s);
	std::lock_guard<std::mutex> hold(held->lock);
	held->held = on;
	held->change.notify_all();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
	stream *on = of(s);
	std::lock_guard<std::mutex> hold(streams_lock);
	if (!s || on->capturing)
		return cudaErrorStreamCaptureUnsupported;
	on->capture_mode = mode;
	on->captured_by = std::this_thread::get_id();
	on->capturing = cudaStreamCaptureStatusActive;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
	stream *on = of(s);
	std::lock_guard<std::mutex> hold(streams_lock);
	*graph = nullptr;
	if (!on->capturing)
		return cudaErrorInvalidValue;
	int was = on->capturing.exchange(cudaStreamCaptureStatusNone);
	return was == cudaStreamCaptureStatusActive ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
	std::swap(thread_mode, *mode);
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	stream *gone = of(s);
	std::lock_guard<std::mutex> hold(streams_lock);
	streams().erase(gone);
	return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
	stream *on = of(s);
	if (cudaError_t e = allowed(on, on->capturing))
		return e;
	return on->has(on->last()) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	stream *on = of(s);
	if (cudaError_t e = allowed(on, on->capturing))
		return e;
	waits++;
	on->wait(on->last());
	return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, void (*f)(void *), void *data)
{
	of(s)->put([=] { f(data); });
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
	stream *on;
	uint64_t number;
	bool captured = of(e)->get(&on, &number);
	stream *behind = of(s);
	if (on && behind->capturing && !captured) {
		behind->capturing = cudaStreamCaptureStatusInvalidated;
		return last_error = cudaErrorStreamCaptureIsolation;
	}
	if (captured && !behind->capturing)
		fake_die("a stream is drawn into a capture by an event");
	if (on)
		behind->put([=] { on->wait(number); });
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
	*e = reinterpret_cast<cudaEvent_t>(new event);
	return absent();
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	delete of(e);
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	of(e)->record(of(s));
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	int64_t a = of(from)->time(), b = of(to)->time();
	if (!a || !b)
		return cudaErrorNotReady;
	*ms = float(double(b - a) * 1e-6);
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	stream *on;
	uint64_t number;
	bool captured = of(e)->get(&on, &number);
	if (cudaError_t refused = allowed(on, captured))
		return refused;
	return !on || on->has(number) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	stream *on;
	uint64_t number;
	bool captured = of(e)->get(&on, &number);
	if (cudaError_t refused = allowed(on, captured))
		return refused;
	waits++;
	if (on)
		on->wait(number);
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
	return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, s);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                              cudaMemcpyKind, cudaStream_t s)
{
	bool from_plain = fake_plain(from), to_plain = fake_plain(to);
	std::shared_ptr<char> taken;
	if (!width || !rows)
		return cudaSuccess;
	if (width > to_pitch || width > from_pitch)
		return cudaErrorInvalidValue;
	if (from_plain) {
		taken.reset(static_cast<char *>(malloc(width * rows)), free);
		for (size_t r = 0; r < rows; r++)
			memcpy(taken.get() + r * width, static_cast<const char *>(from) + r * from_pitch, width);
		from_pitch = width;
	}
	stream *on = of(s);
	uint64_t number = on->put([=] {
		const fake_time takes(2 * double(width) * double(rows), "FAKE_CUDA_RATE");
		const char *f =
			taken ? taken.get() : static_cast<char *>(fake_at(from, (rows - 1) * from_pitch + width));
		char *t = static_cast<char *>(to_plain ? to : fake_at(to, (rows - 1) * to_pitch + width));
		for (size_t r = 0; r < rows; r++)
			memmove(t + r * to_pitch, f + r * from_pitch, width);
	});
	waits += to_plain;
	if (to_plain)
		on->wait(number);
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
	if (bytes)
		of(s)->put([=] { memset(fake_at(p, bytes), value, bytes); });
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int id)
{
	*value = 0;
	return id ? cudaErrorInvalidDevice : absent();
}

cudaError_t cudaDeviceSynchronize(void)
{
	if (cudaError_t e = allowed())
		return e;
	await_all();
	return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
	return cudaEventCreateWithFlags(e, 0);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
	const cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
	return e ? e : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
	const cudaError_t e = cudaMemsetAsync(p, value, bytes, nullptr);
	return e ? e : cudaStreamSynchronize(nullptr);
}
}
