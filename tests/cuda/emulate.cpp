/* The scheduler behind emulate.h. */
#include "tests/cuda/emulate.h"

#include <numeric>
#include <sys/mman.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace
{

constexpr unsigned MOST = 1024, ARRAYS = 32;
/* It has an odd number of cache lines, so that the tops of all stacks do not share the few places of one address. */
constexpr size_t STACK = (128 << 10) + 17 * 64, MOST_SHARED = 99 << 10; /* limits of sm_86 and sm_89 */

enum progress { RUNS, AT_BARRIER, AT_WARP, DONE };

struct fiber {
	void *sp;
	progress at;
	unsigned turn;
};

struct array {
	const void *key;
	void *memory;
	size_t bytes;
};

fiber fibers[MOST];
/* Two turns of values: a lane may reach the next collective before the last one has
 * read this one. */
uint64_t slots[MOST / 32][2][32];
array arrays[ARRAYS];
unsigned narrays, nthreads;
void *scheduler_sp, *dynamic_memory;
size_t shared_dynamic;
char *stacks;
void (*the_call)(void *);
void *the_body;

[[noreturn]] void die(const char *why)
{
	printf("Bail out! emulation: %s\n", why);
	exit(1);
}

uint64_t draw()
{
	static uint64_t z = getenv("TEST_SEED") ? strtoull(getenv("TEST_SEED"), nullptr, 0) : 1;
	return (z = z * 6364136223846793005u + 1442695040888963407u) >> 33;
}

/* 0 .. n - 1 in another order every time. */
struct order {
	size_t n, at, step = 1;
	explicit order(size_t count) : n(count), at(draw() % count)
	{
		for (size_t s = draw() % n; s > 1; s--)
			if (std::gcd(s, n) == 1) {
				step = s;
				break;
			}
	}
	size_t next() { return at = (at + step) % n; }
};

void *fresh(const char *name, size_t bytes)
{
#ifdef GRADCOMP_RACES
	void *p = races_shared(name, bytes);
#else
	void *p = malloc(bytes ? bytes : 1);
	(void)name;
	if (!p)
		die("no memory");
#endif
	return memset(p, int(draw() & 255), bytes);
}

void give_back(void *p)
{
#ifdef GRADCOMP_RACES
	(void)p;
#else
	free(p);
#endif
}

/* Saves the registers that calls preserve on the old stack and takes them from the
 * new one. */
#if defined(__x86_64__)
extern "C" void emulate_switch(void **from, void *to);
asm(".text\n.globl emulate_switch\nemulate_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#define REGISTERS 6

void *prepare(char *top, void (*entry)())
{
	void **sp = reinterpret_cast<void **>(top) - 2;
#if defined(__SANITIZE_ADDRESS__)
	/* The last thread on this stack never returned from its first functions. */
	__asan_unpoison_memory_region(top - 4096, 4096);
#endif
	*sp = reinterpret_cast<void *>(entry);
	for (int i = 0; i < REGISTERS; i++)
		*--sp = nullptr;
	return sp;
}
#else
#error "the emulation switches stacks on x86-64 only"
#endif

void go(void **from, void *to, const void *stack, size_t bytes)
{
#if defined(__SANITIZE_ADDRESS__)
	void *fake = nullptr;
	__sanitizer_start_switch_fiber(&fake, stack, bytes);
	emulate_switch(from, to);
	__sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
	(void)stack, (void)bytes;
	emulate_switch(from, to);
#endif
}

const void *main_stack;
size_t main_bytes;

void give_way(progress at)
{
	unsigned me = threadIdx.x;
	fibers[me].at = at;
	go(&fibers[me].sp, scheduler_sp, main_stack, main_bytes);
}

void fiber_main()
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(nullptr, &main_stack, &main_bytes);
#endif
	the_call(the_body);
	give_way(DONE);
	die("a thread came back from the dead");
}

void run_thread(unsigned t)
{
	threadIdx.x = t;
	races_go(t);
	go(&scheduler_sp, fibers[t].sp, stacks + t * STACK, STACK);
	races_stop();
}

/* Lets those go on who wait for something that has happened; how many threads are
 * left. */
unsigned release()
{
	unsigned left = 0, waiting = 0, moved = 0;
	for (unsigned t = 0; t < nthreads; t++) {
		left += fibers[t].at != DONE;
		waiting += fibers[t].at == AT_BARRIER;
	}
	for (unsigned t = 0; waiting == left && t < nthreads; t++)
		if (fibers[t].at == AT_BARRIER) {
			fibers[t].at = RUNS;
			moved++;
		}
	if (moved)
		races_barrier();
	for (unsigned w = 0; w < nthreads / 32; w++) {
		unsigned here = 0;
		for (unsigned t = 32 * w; t < 32 * w + 32; t++)
			here += fibers[t].at == AT_WARP;
		for (unsigned t = 32 * w; here == 32 && t < 32 * w + 32; t++) {
			fibers[t].at = RUNS;
			moved++;
		}
	}
	if (left && !moved)
		die("threads of a block wait for each other for ever");
	return left;
}

void run_block()
{
	for (unsigned t = 0; t < nthreads; t++)
		fibers[t] = {prepare(stacks + (t + 1) * STACK, fiber_main), RUNS, 0};
	do {
		order o(nthreads);
		for (unsigned i = 0; i < nthreads; i++) {
			unsigned t = unsigned(o.next());
			if (fibers[t].at == RUNS)
				run_thread(t);
		}
	} while (release());
	while (narrays)
		give_back(arrays[--narrays].memory);
}

} // namespace

void emulate_barrier()
{
	give_way(AT_BARRIER);
}

const uint64_t *emulate_warp(uint64_t mine)
{
	unsigned me = threadIdx.x, turn = fibers[me].turn++ & 1;
	slots[me / 32][turn][me % 32] = mine;
	give_way(AT_WARP);
	return slots[me / 32][turn];
}

void *emulate_shared(const void *key, const char *name, size_t bytes)
{
	for (unsigned i = 0; i < narrays; i++)
		if (arrays[i].key == key)
			return arrays[i].memory;
	if (narrays == ARRAYS)
		die("too many shared arrays");
	arrays[narrays] = {key, fresh(name, bytes), bytes};
	size_t all = 0;
	for (unsigned i = 0; i <= narrays; i++)
		all += arrays[i].bytes;
	if (all > 48 << 10)
		die("more than 48 KiB of shared memory that was not asked for");
	if (all + shared_dynamic > MOST_SHARED)
		die("more shared memory than there is");
	return arrays[narrays++].memory;
}

void *emulate_shared_dynamic()
{
	return dynamic_memory;
}

long emulate_queued;
static long launches_left;
static bool launch_failed;

void emulate_fail(long k)
{
	launches_left = k;
}

bool device_refuses()
{
	return launch_failed;
}

const char *device_error()
{
	const bool was = launch_failed;
	launch_failed = false;
	return was ? "invalid configuration argument" : nullptr;
}

void emulate_launch(const void *kernel, dim3 blocks, unsigned threads, size_t shared, void (*call)(void *), void *body)
{
	if (!blocks.x || !blocks.y || !blocks.z || blocks.x > INT32_MAX || blocks.y > 65535 || blocks.z > 65535)
		die("a launch of no blocks, or of too many");
	if (!threads || threads % 32 || threads > MOST)
		die("a block has whole warps, at most 32");
	if (shared > MOST_SHARED)
		die("more shared memory than there is");
	shared_dynamic = shared;
	emulate_queued++;
	launch_failed |= launches_left && !--launches_left;
	if (launch_failed)
		return;
	if (!stacks) {
		void *p = mmap(nullptr, MOST * STACK, PROT_READ | PROT_WRITE,
		               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			die("no memory for stacks");
		stacks = static_cast<char *>(p);
	}
	gridDim = blocks;
	blockDim = dim3(threads);
	nthreads = threads;
	the_call = call;
	the_body = body;
	races_launch(kernel);
	order o(size_t(blocks.x) * blocks.y * blocks.z);
	for (size_t i = 0; i < o.n; i++) {
		size_t b = o.next();
		blockIdx = dim3(unsigned(b % blocks.x), unsigned(b / blocks.x % blocks.y),
		                unsigned(b / blocks.x / blocks.y));
		races_block(b);
		dynamic_memory = fresh("dynamic", shared);
		run_block();
		give_back(dynamic_memory);
	}
}
