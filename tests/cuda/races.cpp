/* Finds accesses of kernels that race; what orders them is in races.h. Prints at the end
 *
 *   # race: KIND KERNEL AT BEFORE PLACE OFFSET THREAD BLOCK THREAD BLOCK
 *
 * once for each two places, AT and BEFORE, in the code, both addresses in the program: "write-read" was a write
 * at BEFORE and a read at AT; of "unwritten" nobody had written the shared memory that was read. PLACE is a shared array, or
 * the device's memory. With RACES_STOP in the environment it ends at the first one that is not
 * "unwritten", with status 3. With RACES_COUNT it counts bytes instead. */
#include "tests/cuda/races.h"

#ifdef GRADCOMP_RACES
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <sys/mman.h>
#include <tuple>
#include <vector>

namespace
{

constexpr size_t DEVICE = size_t(1) << 30, SHARED_ROOM = 256 << 10, WORD = 4, MOST = 1024, WARP = 32, SECTOR = 32;
constexpr uint16_t SPLIT = UINT16_MAX;

/* Epochs are numbered through all launches: another one begins with a launch, a block, a barrier. 0: there was none. */
struct access {
	uint32_t epoch;
	uint16_t warps; /* how many __syncwarp() the thread had passed in the block */
	uint16_t thread;
	uint32_t pc;
};

/* A word of memory. Of those that read it, and of atomic operations, two are kept that every later access that races
 * with any of them races with. Once a word was accessed in parts, write.thread is SPLIT and write.pc the first of four
 * cells for its bytes, until the launch ends. */
struct cell {
	access write, read[2], atomic[2];
};

struct region {
	const char *name;
	size_t from, bytes;
};

enum kind { READ, WRITE, ATOMIC };
const char *const unwritten = "unwritten", *const after_write[] = {"write-read", "write-write", "write-atomic"},
		  *const after_atomic[] = {"atomic-read", "atomic-write"},
		  *const after_read[] = {"", "read-write", "read-atomic"};

/* What was found: the name of a constant, the kernel, and two places in it. */
typedef std::tuple<const char *, const void *, uint32_t, uint32_t> pair_of_places;
struct seen {
	std::string where;
	unsigned long times;
};
/* Those that were found lately, since some are found millions of times. */
struct recent {
	pair_of_places places;
	seen *what;
} recents[64];

char *device, *shared;
cell *device_cells, *shared_cells;
size_t device_used, device_live, shared_used;
std::vector<region> arrays;
std::vector<cell> bytes_of;
std::vector<std::pair<uint32_t, size_t>> blocks; /* first epochs of those of this launch */
std::map<pair_of_places, seen> races;
std::set<const void *> kernels;
const void *kernel;
uint32_t epoch, launch_from, block_from;
unsigned me;
bool running;
uint16_t warps[MOST];
unsigned long long looked, launches, same_values;
const bool counts = getenv("RACES_COUNT");
std::vector<uint8_t> sectors; /* what this launch has done to each sector of the device's memory: bits by kind */
long moved[2];

/* Two writes that race unless they write the same, which shows once the second has taken place. */
struct doubt {
	const char *at;
	unsigned bytes;
	char was[WORD];
	access now, before;
};
std::vector<doubt> doubts;

char *reserve(size_t bytes)
{
	void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) {
		printf("Bail out! no memory for what is known of the device's\n");
		exit(1);
	}
	return static_cast<char *>(p);
}

size_t block_of(uint32_t e)
{
	auto at = std::upper_bound(blocks.begin(), blocks.end(), std::make_pair(e, SIZE_MAX));
	return at == blocks.begin() ? 0 : (at - 1)->second;
}

void describe(std::string &where, const char *at, const access &now, const access &before)
{
	char text[200];
	const char *name = "device";
	size_t offset = 0;
	if (at >= shared && at < shared + SHARED_ROOM)
		for (const region &r : arrays)
			if (size_t(at - shared) >= r.from && size_t(at - shared) < r.from + r.bytes)
				name = r.name, offset = size_t(at - shared) - r.from;
	snprintf(text, sizeof text, "%s %zu %u %zu %u %zu", name, offset, now.thread, block_of(now.epoch),
	         before.thread, block_of(before.epoch));
	where = text;
}

void found(const char *what, const char *at, const access &now, const access &before)
{
	const pair_of_places places(what, kernel, now.pc, before.pc);
	recent &r = recents[(now.pc ^ before.pc * 31) % (sizeof recents / sizeof *recents)];
	if (!r.what || r.places != places)
		r = {places, &races[places]};
	if (!r.what->times++)
		describe(r.what->where, at, now, before);
	if (what != unwritten && getenv("RACES_STOP"))
		exit(3);
}

void settle()
{
	for (const doubt &d : doubts)
		if (memcmp(d.at, d.was, d.bytes))
			found(after_write[WRITE], d.at, d.now, d.before);
		else
			same_values++;
	doubts.clear();
}

/* Returns true when the access was before all that the running thread does now; `from`: the first epoch that counts. */
bool ordered(const access &a, uint32_t from)
{
	if (a.epoch < from)
		return true;
	if (a.epoch < block_from)
		return false;
	return a.epoch < epoch || a.thread == me || (a.thread / WARP == me / WARP && a.warps < warps[me]);
}

void keep(access (&kept)[2], const access &now, uint32_t from)
{
	access &a = kept[0], &b = kept[1];
	const auto replaced = [&](const access &old) {
		return old.epoch != epoch || old.thread == me ||
		       (old.thread / WARP == me / WARP && old.warps < now.warps);
	};
	/* One of a block before races with all that writes from now on. */
	if (a.epoch >= from && a.epoch < block_from)
		return;
	if (replaced(a)) {
		a = now;
		if (replaced(b))
			b.epoch = 0;
	} else if (replaced(b) || (a.thread / WARP == b.thread / WARP && a.thread / WARP != me / WARP)) {
		b = now;
	}
}

template <kind k>
inline void look_cell(cell &c, const char *at, unsigned bytes, const access &now, uint32_t from, bool is_shared)
{
	const bool written = c.write.epoch >= from || c.atomic[0].epoch >= from;
	if (is_shared && k != WRITE && !written)
		found(unwritten, at, now, now);
	/* A write of a block before races with more of what is to come than this one. */
	bool stays = false;
	if (!ordered(c.write, from) && k == WRITE) {
		doubt d = {at, bytes, {}, now, c.write};
		memcpy(d.was, at, bytes);
		doubts.push_back(d);
		stays = c.write.epoch < block_from;
	} else if (!ordered(c.write, from)) {
		found(after_write[k], at, now, c.write);
	}
	for (const access &a : c.atomic)
		if (k != ATOMIC && !ordered(a, from))
			found(after_atomic[k == WRITE], at, now, a);
	for (const access &a : c.read)
		if (k != READ && !ordered(a, from))
			found(after_read[k], at, now, a);
	if (k == WRITE && !stays)
		c.write = now;
	if (k != WRITE)
		keep(k == READ ? c.read : c.atomic, now, from);
}

void count(const void *address, size_t bytes, kind k)
{
	const size_t at = size_t(static_cast<const char *>(address) - device);
	if (at >= DEVICE || !bytes)
		return;
	for (size_t s = at / SECTOR; s <= (at + bytes - 1) / SECTOR; s++)
		for (int way : {READ, WRITE})
			if ((k == way || k == ATOMIC) && !(sectors[s] >> way & 1)) {
				sectors[s] |= uint8_t(1 << way);
				moved[way] += SECTOR;
			}
}

void forget_sectors()
{
	if (counts)
		sectors.assign(device_used / SECTOR + 1, 0);
}

template <kind k> void look(const void *address, size_t bytes, const void *pc)
{
	if (!running)
		return;
	if (counts) {
		count(address, bytes, k);
		return;
	}
	if (!doubts.empty())
		settle();
	const char *p = static_cast<const char *>(address);
	const bool is_shared = size_t(p - shared) < SHARED_ROOM;
	if (!is_shared && size_t(p - device) >= DEVICE)
		return; /* the thread's own, or the kernel's arguments */
	looked++;
	const uint32_t from = is_shared ? block_from : launch_from;
	const access now = {epoch, warps[me], uint16_t(me), uint32_t(reinterpret_cast<uintptr_t>(pc))};
	size_t at = size_t(p - (is_shared ? shared : device));
	cell *const cells = is_shared ? shared_cells : device_cells;
	for (size_t end = at + bytes; at < end;) {
		cell &c = cells[at / WORD];
		const size_t upto = std::min(end, (at / WORD + 1) * WORD);
		const char *const memory = (is_shared ? shared : device) + at;
		bool split = c.write.thread == SPLIT && c.write.epoch >= from;
		if (!split && upto - at < WORD) {
			bytes_of.insert(bytes_of.end(), WORD, c);
			c.write = {epoch, 0, SPLIT, uint32_t(bytes_of.size() - WORD)};
			split = true;
		}
		if (!split)
			look_cell<k>(c, memory, WORD, now, from, is_shared);
		for (size_t i = at; split && i < upto; i++)
			look_cell<k>(bytes_of[c.write.pc + i % WORD], memory + (i - at), 1, now, from, is_shared);
		at = upto;
	}
}

void tell()
{
	running = false;
	for (const auto &r : races)
		printf("# race: %s %p 0x%x 0x%x %s %lu\n", std::get<0>(r.first), std::get<1>(r.first),
		       std::get<2>(r.first), std::get<3>(r.first), r.second.where.c_str(), r.second.times);
	for (const void *k : kernels)
		printf("# kernel: %p\n", k);
	printf("# looked: %llu accesses, %llu launches of %zu kernels, %llu writes of the same value, %zu races\n",
	       looked, launches, kernels.size(), same_values, races.size());
	fflush(stdout);
}

bool begin()
{
	device = reserve(DEVICE);
	shared = reserve(SHARED_ROOM);
	device_cells = reinterpret_cast<cell *>(reserve(DEVICE / WORD * sizeof(cell)));
	shared_cells = reinterpret_cast<cell *>(reserve(SHARED_ROOM / WORD * sizeof(cell)));
	return !atexit(tell);
}
const bool begun = begin();

} // namespace

void *races_device_alloc(size_t bytes)
{
	void *const p = device + device_used;
	device_used += (bytes + 511) / 256 * 256;
	device_live++;
	if (device_used > DEVICE) {
		printf("Bail out! more of the device's memory is in use than races.cpp has\n");
		exit(1);
	}
	return p;
}

void races_device_free(void *)
{
	if (!--device_live)
		device_used = 0;
}

void *races_shared(const char *name, size_t bytes)
{
	arrays.push_back({name, shared_used, bytes});
	shared_used += (bytes + 63) / 64 * 64 + 64;
	return shared + arrays.back().from;
}

void races_launch(const void *k)
{
	kernel = k;
	kernels.insert(k);
	launches++;
	bytes_of.clear();
	blocks.clear();
	launch_from = ++epoch;
	forget_sectors();
}

void races_block(size_t block)
{
	arrays.clear();
	shared_used = 0;
	memset(warps, 0, sizeof warps);
	block_from = ++epoch;
	blocks.emplace_back(epoch, block);
}

void races_barrier()
{
	epoch++;
}

void races_go(unsigned thread)
{
	me = thread;
	running = true;
}

void races_stop()
{
	if (!doubts.empty())
		settle();
	running = false;
}

void races_warp()
{
	warps[me]++;
}

void races_atomic(const void *p, size_t bytes, const void *pc)
{
	look<ATOMIC>(p, bytes, pc);
}

void races_copy(const void *to, const void *from, size_t bytes)
{
	if (!counts)
		return;
	forget_sectors();
	count(from, bytes, READ);
	count(to, bytes, WRITE);
}

bool races_moved(long *read, long *written)
{
	*read = moved[READ];
	*written = moved[WRITE];
	return counts;
}

size_t races_blocks(size_t most)
{
	return counts || most < 2 ? most : 2;
}

/* The compiler calls these. */
#define HERE __builtin_return_address(0)
#define BOTH(n) \
	void __tsan_read##n(void *p) \
	{ \
		look<READ>(p, n, HERE); \
	} \
	void __tsan_write##n(void *p) \
	{ \
		look<WRITE>(p, n, HERE); \
	} \
	void __tsan_unaligned_read##n(void *p) \
	{ \
		look<READ>(p, n, HERE); \
	} \
	void __tsan_unaligned_write##n(void *p) \
	{ \
		look<WRITE>(p, n, HERE); \
	} \
	void __tsan_volatile_read##n(void *p) \
	{ \
		look<READ>(p, n, HERE); \
	} \
	void __tsan_volatile_write##n(void *p) \
	{ \
		look<WRITE>(p, n, HERE); \
	} \
	void __tsan_read_write##n(void *p) \
	{ \
		look<READ>(p, n, HERE), look<WRITE>(p, n, HERE); \
	}

extern "C" {
BOTH(1)
BOTH(2)
BOTH(4)
BOTH(8)
BOTH(16)
void __tsan_read_range(void *p, size_t n)
{
	look<READ>(p, n, HERE);
}
void __tsan_write_range(void *p, size_t n)
{
	look<WRITE>(p, n, HERE);
}
void *__tsan_memcpy(void *to, const void *from, size_t n)
{
	look<READ>(from, n, HERE), look<WRITE>(to, n, HERE);
	return memcpy(to, from, n);
}
void *__tsan_memset(void *to, int v, size_t n)
{
	look<WRITE>(to, n, HERE);
	return memset(to, v, n);
}
void __tsan_init()
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit()
{
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}
}
#endif
