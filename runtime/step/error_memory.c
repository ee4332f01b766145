#include "step/error_memory.h"

#include "operators/cpu/half.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64, BLOCK_BYTES = sizeof(uint16_t) + BLOCK };

/* Forms of memory. They read at any number; they write from a multiple of `grain` on, to another or to the end of a
 * tensor. */
typedef struct form {
	uint32_t grain;
	uint64_t (*packed_bytes)(uint64_t n);
	void (*unpack)(const gradcomp_operators *ops, const unsigned char *p, uint64_t first, uint64_t n, float *to);
	void (*pack)(const gradcomp_operators *ops, unsigned char *p, uint64_t first, uint64_t n, const float *from);
} form;

struct error_memory {
	const form *form;
	const gradcomp_operators *ops;
	const gradcomp_layout *layout;
	float average;
	uint64_t *at; /* by tensor: where it begins in bytes[] */
	unsigned char *bytes;
};

static uint64_t f32_bytes(uint64_t n)
{
	return n * sizeof(float);
}

static void f32_read(const gradcomp_operators *ops, const unsigned char *p, uint64_t first, uint64_t n, float *to)
{
	(void)ops;
	memcpy(to, p + first * sizeof *to, n * sizeof *to);
}

static void f32_write(const gradcomp_operators *ops, unsigned char *p, uint64_t first, uint64_t n, const float *from)
{
	(void)ops;
	memcpy(p + first * sizeof *from, from, n * sizeof *from);
}

static uint64_t bf16_bytes(uint64_t n)
{
	return n * sizeof(uint16_t);
}

static void bf16_read(const gradcomp_operators *ops, const unsigned char *p, uint64_t first, uint64_t n, float *to)
{
	ops->cast_to_f32(NULL, to, p + first * sizeof(uint16_t), n, GRADCOMP_BF16);
}

static void bf16_write(const gradcomp_operators *ops, unsigned char *p, uint64_t first, uint64_t n, const float *from)
{
	ops->cast_from_f32(NULL, p + first * sizeof(uint16_t), from, n, GRADCOMP_BF16, 1);
}

static uint64_t i8_bytes(uint64_t n)
{
	const uint64_t whole = n / BLOCK, rest = n % BLOCK;
	/* Even, as steps are. */
	return whole * BLOCK_BYTES + (rest ? sizeof(uint16_t) + rest + rest % 2 : 0);
}

/* The upper half of a float that is the step of a block, whose largest magnitude has these bits. With 8 bits of the
 * step 127 times it is exact: so a block that has been read gets the same step again. */
static uint16_t i8_step(uint32_t largest)
{
	if (largest >= 0x7f800000)
		return 0x7fc0;
	const uint16_t step = float_bf16(bits_float(largest) / 127, 0);
	return step < 0x80 ? 0 : step;
}

static void i8_codes(signed char *codes, const float *x, uint32_t n, float inverse)
{
	/* Added to a small number it pushes out the fraction, rounding to nearest even. */
	const float shift = 0x1.8p23f;
	for (uint32_t i = 0; i < n; i++)
		codes[i] = (signed char)(int32_t)(float_bits(x[i] * inverse + shift) - float_bits(shift));
}

static void i8_block(unsigned char *p, const float *x, uint32_t n)
{
	uint32_t largest = 0;
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t bits = float_bits(x[i]) & 0x7fffffff;
		largest = bits > largest ? bits : largest;
	}
	const uint16_t step = i8_step(largest);
	memcpy(p, &step, sizeof step);
	if (step && step < 0x7f80)
		i8_codes((signed char *)p + sizeof step, x, n, 1 / bf16_float(step));
	else
		memset(p + sizeof step, 0, n);
}

static void i8_write(const gradcomp_operators *ops, unsigned char *p, uint64_t first, uint64_t n, const float *from)
{
	(void)ops;
	p += first / BLOCK * BLOCK_BYTES;
	for (; n >= BLOCK; n -= BLOCK, p += BLOCK_BYTES, from += BLOCK)
		i8_block(p, from, BLOCK);
	if (n)
		i8_block(p, from, (uint32_t)n);
}

static void i8_read(const gradcomp_operators *ops, const unsigned char *p, uint64_t first, uint64_t n, float *to)
{
	(void)ops;
	p += first / BLOCK * BLOCK_BYTES;
	for (uint64_t skip = first % BLOCK, some; n; n -= some, to += some, p += BLOCK_BYTES, skip = 0) {
		const signed char *codes = (const signed char *)p + sizeof(uint16_t) + skip;
		uint16_t half;
		memcpy(&half, p, sizeof half);
		const float step = bf16_float(half);
		some = n < BLOCK - skip ? n : BLOCK - skip;
		for (uint64_t i = 0; i < some; i++)
			to[i] = (float)codes[i] * step;
	}
}

static const form forms[MEMORY_FORMS] = {
	[MEMORY_F32] = {1, f32_bytes, f32_read, f32_write},
	[MEMORY_BF16] = {1, bf16_bytes, bf16_read, bf16_write},
	[MEMORY_I8] = {BLOCK, i8_bytes, i8_read, i8_write},
};

error_memory *error_memory_make(const gradcomp_layout *layout, const gradcomp_operators *ops, memory_form form,
                                float average)
{
	error_memory *m = calloc(1, sizeof *m);
	uint64_t bytes = 0;
	if (!m)
		return NULL;
	m->form = &forms[form];
	m->ops = ops;
	m->layout = layout;
	m->average = average;
	m->at = calloc((size_t)layout->ntensors + 1, sizeof *m->at);
	for (uint32_t i = 0; m->at && i < layout->ntensors; bytes += m->form->packed_bytes(layout->tensors[i++].numel))
		m->at[i] = bytes;
	m->bytes = m->at ? calloc(1, bytes + 1) : NULL;
	if (m->bytes)
		return m;
	error_memory_free(m);
	return NULL;
}

void error_memory_free(error_memory *m)
{
	if (m) {
		free(m->at);
		free(m->bytes);
	}
	free(m);
}

/* Finds the tensor that number `at` is in: the last one that does not begin behind it. */
static uint32_t tensor_of(const error_memory *m, uint64_t at)
{
	uint32_t low = 0, high = m->layout->ntensors;
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		if (m->layout->tensors[middle].offset <= at)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void error_memory_read(const error_memory *m, uint64_t at, uint64_t n, float *to)
{
	for (uint32_t i = n ? tensor_of(m, at) : 0; n; i++) {
		const gradcomp_tensor *t = &m->layout->tensors[i];
		const uint64_t first = at - t->offset, some = least(n, t->numel - first);
		if (some)
			m->form->unpack(m->ops, m->bytes + m->at[i], first, some, to);
		at += some;
		to += some;
		n -= some;
	}
}

/* Numbers of one tensor. Where they begin or end within a block, its others are read and written again. */
static void write_tensor(error_memory *m, uint32_t i, uint64_t first, uint64_t n, const float *from)
{
	const uint64_t numel = m->layout->tensors[i].numel, grain = m->form->grain;
	unsigned char *p = m->bytes + m->at[i];
	float block[BLOCK];
	for (uint64_t some; n; first += some, from += some, n -= some) {
		const uint64_t skip = first % grain, whole = first + n == numel ? n : n - n % grain;
		if (!skip && whole) {
			some = whole;
			m->form->pack(m->ops, p, first, some, from);
			continue;
		}
		const uint64_t of_block = least(grain, numel - (first - skip));
		some = least(n, of_block - skip);
		m->form->unpack(m->ops, p, first - skip, of_block, block);
		memcpy(block + skip, from, some * sizeof *block);
		m->form->pack(m->ops, p, first - skip, of_block, block);
	}
}

void error_memory_write(error_memory *m, uint64_t at, uint64_t n, const float *from)
{
	for (uint32_t i = n ? tensor_of(m, at) : 0; n; i++) {
		const gradcomp_tensor *t = &m->layout->tensors[i];
		const uint64_t first = at - t->offset, some = least(n, t->numel - first);
		write_tensor(m, i, first, some, from);
		at += some;
		from += some;
		n -= some;
	}
}

void error_memory_store(error_memory *m, uint64_t at, uint64_t n, float *left)
{
	const float new = m->average, old = 1 - m->average;
	float before[BLOCK];
	for (uint64_t k = 0, some; old > 0 && k < n; k += some) {
		some = least(n - k, BLOCK);
		error_memory_read(m, at + k, some, before);
		for (uint64_t i = 0; i < some; i++)
			left[k + i] = old * before[i] + new *left[k + i];
	}
	error_memory_write(m, at, n, left);
}
