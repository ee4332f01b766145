/* Sums of what ranks have coded. A thread has a few numbers that stand side by side, and takes them from one rank's
 * payload after the other: sums are written once, however many ranks there are. */
#include "operators/cuda/cuda_kinds.h"
#include "operators/cuda/cuda_quantise.h"

/* A launch takes so many, which fit the 4 KiB of a kernel's arguments; more take more launches. */
enum { SUM_PARTS = 40, SUM_RANKS = 128, SUM_VALUES = 128 };

struct sum_lists {
	gradcomp_coded part[SUM_PARTS];
	const uint8_t *payload[SUM_RANKS];
	uint32_t first[SUM_PARTS]; /* block of a part */
	uint32_t parts, ranks;
	int checks;
};

/* A coding reads a thread's numbers, at most WIDTH, from number i on. */
struct numbers {
	size_t i;
	unsigned count;
};

/* Says of the codings below that they need no table. */
struct tableless {
	static constexpr int TABLE = 1;
	static constexpr bool RUNS = false;
	__device__ void prepare(float *) const {}
};

INLINE bool is_wild(float v)
{
	return key_of(v) >= KEY_INF;
}

template <int BITS> struct quantised_sum : tableless {
	static constexpr int WIDTH = 8;
	uint32_t groups, norm;
	int levels;
	const float *given;

	__device__ void add(float *sum, const uint8_t *payload, const gradcomp_coded &p, numbers at, const float *,
	                    float a, bool &wrong) const
	{
		const uint8_t *codes = payload + p.codes + at.i / 8 * BITS;
		const unsigned bytes = unsigned(code_bytes(at.count, BITS));
		const uint32_t low = load_word(codes, bytes < 4 ? bytes : 4),
			       high = BITS == 8 && bytes > 4 ? load_word(codes + 4, bytes - 4) : 0;
		const float step =
			given ? *given : load_float(payload + p.values + block_of(at.i, groups) * sizeof(float));
		if (!given)
			wrong |= !(step >= 0 && !is_wild(step)) &&
			         !(norm == GRADCOMP_NORM_ABSMAX_OR_NAN && float_bits(step) == NAN_SCALE);
#pragma unroll
		for (unsigned j = 0; j < WIDTH; j++) {
			const int c = BITS == 8 && j >= 4 ? code_of(high, j - 4, BITS) : code_of(low, j, BITS);
			wrong |= j < at.count && (c > levels || c < -levels);
			sum[j] += a * (float(c) * step);
		}
	}
};

/* Values are put where threads that want different ones do not wait for each other. */
template <int BITS> struct levels_sum {
	static constexpr int WIDTH = 8, TABLE = SUM_VALUES;
	static constexpr bool RUNS = false;
	uint32_t groups, levels;
	float value[SUM_VALUES];

	__device__ void prepare(float *table) const
	{
		for (unsigned c = threadIdx.x; c <= levels; c += THREADS)
			table[c] = value[c];
		__syncthreads();
	}
	__device__ void add(float *sum, const uint8_t *payload, const gradcomp_coded &p, numbers at, const float *table,
	                    float a, bool &wrong) const
	{
		const uint8_t *codes = payload + p.codes + at.i / 8 * BITS;
		const unsigned bytes = unsigned(code_bytes(at.count, BITS));
		const uint32_t low = load_word(codes, bytes < 4 ? bytes : 4),
			       high = BITS == 8 && bytes > 4 ? load_word(codes + 4, bytes - 4) : 0;
		const float top = load_float(payload + p.values + block_of(at.i, groups) * sizeof(float));
		wrong |= !(top >= 0 && !is_wild(top));
#pragma unroll
		for (unsigned j = 0; j < WIDTH; j++) {
			const int c = BITS == 8 && j >= 4 ? code_of(high, j - 4, BITS) : code_of(low, j, BITS);
			const unsigned level = unsigned(c < 0 ? -c : c);
			const float v = top * table[level < levels ? level : levels];
			wrong |= j < at.count && level > levels;
			sum[j] += a * (c < 0 ? -v : v);
		}
	}
};

INLINE size_t quotient_of(size_t a, size_t b)
{
	return (a | b) <= UINT32_MAX ? uint32_t(a) / uint32_t(b) : a / b;
}

static_assert(sizeof(sum_lists) + sizeof(levels_sum<8>) + sizeof(float) + sizeof(int *) <= 4096,
              "a kernel's arguments");

/* PAIRS: two values a run, else one and its negative. The numbers of a thread are of one run. */
template <bool PAIRS, int NUMBERS> struct signs_sum : tableless {
	static constexpr int WIDTH = NUMBERS;
	static constexpr bool RUNS = true;

	__device__ void add(float *sum, const uint8_t *payload, const gradcomp_coded &p, numbers at, const float *,
	                    float a, bool &wrong) const
	{
		const size_t run = p.segment >= p.n ? 0 : quotient_of(at.i, p.segment), in = at.i - run * p.segment;
		const uint8_t *v = payload + p.values + run * sizeof(float) * (PAIRS ? 2 : 1);
		const float above = load_float(v), below = PAIRS ? load_float(v + sizeof(float)) : -above;
		const uint32_t byte = payload[p.codes + run * ((p.segment + 31) / 32) * 4 + in / 8] >> in % 8;
		wrong |= is_wild(above) || is_wild(below);
#pragma unroll
		for (unsigned j = 0; j < WIDTH; j++)
			sum[j] += a * (byte >> j & 1 ? below : above);
	}
};

struct ternary_sum : tableless {
	static constexpr int WIDTH = 5;

	__device__ void add(float *sum, const uint8_t *payload, const gradcomp_coded &p, numbers at, const float *,
	                    float a, bool &wrong) const
	{
		const unsigned byte = payload[p.codes + at.i / WIDTH], digits = byte > 242 ? 121 : byte;
		const float scale = *p.scale;
		unsigned left = digits;
		wrong |= byte > 242;
#pragma unroll
		for (unsigned j = 0; j < WIDTH; j++, left /= 3)
			sum[j] += a * (scale * float(int(left % 3) - 1));
	}
};

template <class KIND> struct float8_sum : tableless {
	static constexpr int WIDTH = 8;
	uint32_t groups;
	int powers;

	__device__ void add(float *sum, const uint8_t *payload, const gradcomp_coded &p, numbers at, const float *,
	                    float a, bool &wrong) const
	{
		const uint8_t *codes = payload + p.codes + at.i * KIND::bits / 8;
		const float scale = scale_of<KIND>(payload + p.values, at.i, groups, powers, wrong);
		const unsigned bytes = (at.count * KIND::bits + 7) / 8, each = 32 / KIND::bits;
		const uint32_t low = load_word(codes, bytes < 4 ? bytes : 4),
			       high = bytes > 4 ? load_word(codes + 4, bytes - 4) : 0;
#pragma unroll
		for (unsigned j = 0; j < WIDTH; j++) {
			const uint32_t word = j < each ? low : high;
			const uint8_t c = KIND::unpacked(word >> KIND::bits * (j % each) & ((1u << KIND::bits) - 1));
			wrong |= (c & 0x7f) > KIND::most;
			sum[j] += a * (KIND::wide(c) * scale);
		}
	}
};

struct powers_sum : tableless {
	static constexpr int WIDTH = 8;

	__device__ void add(float *sum, const uint8_t *payload, const gradcomp_coded &p, numbers at, const float *,
	                    float a, bool &) const
	{
		const uint8_t *exponents = payload + p.values + at.i;
		const uint32_t signs = payload[p.codes + at.i / 8],
			       low = load_word(exponents, at.count < 4 ? at.count : 4),
			       high = at.count > 4 ? load_word(exponents + 4, at.count - 4) : 0;
#pragma unroll
		for (unsigned j = 0; j < WIDTH; j++) {
			const uint32_t e = (j < 4 ? low >> 8 * j : high >> 8 * (j - 4)) & 255;
			sum[j] += a * bits_float(e << 23 | (signs >> j & 1) << 31);
		}
	}
};

template <class KIND> struct float16_sum : tableless {
	static constexpr int WIDTH = 8;

	__device__ void add(float *sum, const uint8_t *payload, const gradcomp_coded &p, numbers at, const float *,
	                    float a, bool &) const
	{
		const uint8_t *codes = payload + p.codes + at.i * sizeof(typename KIND::type);
#pragma unroll
		for (unsigned j = 0; j < WIDTH; j += 2) {
			const unsigned left = at.count > j ? 2 * (at.count - j) : 0;
			const uint32_t w = load_word(codes + 2 * size_t(j), left < 4 ? left : 4);
			sum[j] += a * KIND::wide(typename KIND::type(w & 0xffff));
			sum[j + 1] += a * KIND::wide(typename KIND::type(w >> 16));
		}
	}
};

struct largest_sum : tableless {
	static constexpr int WIDTH = 4;

	__device__ void add(float *sum, const uint8_t *payload, const gradcomp_coded &p, numbers at, const float *,
	                    float, bool &wrong) const
	{
#pragma unroll
		for (unsigned j = 0; j < WIDTH; j++)
			if (j < at.count) {
				const float v = load_float(payload + p.values + (at.i + j) * sizeof(float));
				wrong |= !(v >= 0 && !is_wild(v));
				sum[j] = v > sum[j] ? v : sum[j];
			}
	}
};

template <class C>
static __global__ void __launch_bounds__(THREADS) codes_sum_kernel(sum_lists all, C coding, float a, int *fault)
{
	SHARED(float, table, C::TABLE);
	coding.prepare(table);
	unsigned p = 0;
	for (unsigned i = 1; i < all.parts; i++)
		p = all.first[i] <= blockIdx.x ? i : p;
	const gradcomp_coded part = all.part[p];
	const size_t i = (size_t(blockIdx.x - all.first[p]) * THREADS + threadIdx.x) * C::WIDTH;
	if (i >= part.n)
		return;
	const numbers at = {i, part.n - i < C::WIDTH ? unsigned(part.n - i) : C::WIDTH};
	float sum[C::WIDTH];
	bool wrong = false;
#pragma unroll
	for (unsigned j = 0; j < C::WIDTH; j++)
		sum[j] = part.x && j < at.count ? part.x[i + j] : 0;
#pragma unroll 4
	for (unsigned r = 0; r < all.ranks; r++)
		coding.add(sum, all.payload[r], part, at, table, a, wrong);
	const float times = C::RUNS ? 0 : part.times;
	if (times != 0)
#pragma unroll
		for (unsigned j = 0; j < C::WIDTH; j++)
			sum[j] *= times;
#pragma unroll
	for (unsigned j = 0; j < C::WIDTH; j++)
		if (part.y && j < at.count)
			part.y[i + j] = sum[j];
	if (wrong && all.checks)
		*fault = 1;
}

template <class C>
static void sum_some(void *queue, const C &coding, const gradcomp_coded *part, size_t parts, const void *const *payload,
                     size_t ranks, bool more, bool last, float a, int *fault)
{
	sum_lists all = {};
	size_t blocks = 0;
	all.parts = uint32_t(parts);
	all.ranks = uint32_t(ranks);
	all.checks = fault != nullptr;
	for (size_t p = 0; p < parts; p++) {
		all.part[p] = part[p];
		if (more)
			all.part[p].x = part[p].y;
		if (!C::RUNS && !last)
			all.part[p].times = 0;
		all.first[p] = uint32_t(blocks);
		blocks += (part[p].n + THREADS * C::WIDTH - 1) / (THREADS * C::WIDTH);
	}
	for (size_t r = 0; r < ranks; r++)
		all.payload[r] = static_cast<const uint8_t *>(payload[r]);
	if (blocks)
		launch(codes_sum_kernel<C>, unsigned(blocks), THREADS, 0, queue, all, coding, a, fault);
}

template <class C>
static void sum_as(void *queue, const C &coding, const gradcomp_coded *part, size_t parts, const void *const *payload,
                   size_t ranks, float a, int *fault)
{
	for (size_t p = 0; p < parts; p += SUM_PARTS) {
		const size_t some = parts - p < SUM_PARTS ? parts - p : size_t(SUM_PARTS);
		size_t r = 0;
		do {
			const size_t now = ranks - r < SUM_RANKS ? ranks - r : size_t(SUM_RANKS);
			sum_some(queue, coding, part + p, some, payload + r, now, r > 0, r + SUM_RANKS >= ranks, a,
			         fault);
			r += SUM_RANKS;
		} while (r < ranks);
	}
}

template <int BITS> static quantised_sum<BITS> quantised_of(const gradcomp_quantiser *q)
{
	return {{}, q->block / 32, q->norm, int(q->levels), q->norm == GRADCOMP_NORM_GIVEN ? q->given : nullptr};
}

template <int BITS> static levels_sum<BITS> levels_of(const gradcomp_levels *l)
{
	levels_sum<BITS> s = {l->block / 32, l->levels, {}};
	for (uint32_t c = 0; c <= l->levels; c++)
		s.value[c] = l->value[c];
	return s;
}

/* Returns true when eight numbers from a multiple of eight on are of one run everywhere. */
static bool runs_are_whole(const gradcomp_coded *part, size_t parts)
{
	bool whole = true;
	for (size_t p = 0; p < parts; p++)
		whole &= part[p].segment >= part[p].n || part[p].segment % 8 == 0;
	return whole;
}

extern "C" void codes_sum_cuda(void *queue, const gradcomp_coding *coding, const gradcomp_coded *part, size_t parts,
                               const void *const *payload, size_t ranks, float a, int *fault)
{
	const auto sum = [=](const auto &as) { sum_as(queue, as, part, parts, payload, ranks, a, fault); };
	const gradcomp_quantiser *q = coding->quantiser;
	switch (coding->kind) {
	case GRADCOMP_CODING_QUANTISED:
		return q->bits == 8   ? sum(quantised_of<8>(q))
		       : q->bits == 4 ? sum(quantised_of<4>(q))
		                      : sum(quantised_of<2>(q));
	case GRADCOMP_CODING_LEVELS:
		return coding->levels->bits == 8 ? sum(levels_of<8>(coding->levels))
		                                 : sum(levels_of<4>(coding->levels));
	case GRADCOMP_CODING_SIGNS:
		return runs_are_whole(part, parts) ? sum(signs_sum<true, 8>{}) : sum(signs_sum<true, 1>{});
	case GRADCOMP_CODING_MAGNITUDES:
		return runs_are_whole(part, parts) ? sum(signs_sum<false, 8>{}) : sum(signs_sum<false, 1>{});
	case GRADCOMP_CODING_TERNARY:
		return sum(ternary_sum{});
	case GRADCOMP_CODING_FLOAT8:
		return coding->type == GRADCOMP_F8E4M3
		               ? sum(float8_sum<f8e4m3>{{}, coding->block / 32, int(coding->powers)})
		       : coding->type == GRADCOMP_F4E2M1
		               ? sum(float8_sum<f4e2m1>{{}, coding->block / 32, int(coding->powers)})
		               : sum(float8_sum<f8e5m2>{{}, coding->block / 32, int(coding->powers)});
	case GRADCOMP_CODING_POWERS:
		return sum(powers_sum{});
	case GRADCOMP_CODING_FLOAT16:
		return coding->type == GRADCOMP_F16 ? sum(float16_sum<f16>{}) : sum(float16_sum<bf16>{});
	default:
		return sum(largest_sum{});
	}
}
