/* Samples as values of a data set (gradcomp/dataset.h). */
#include <string.h>

#include "gradcomp/dataset.h"
#include "io/format/samples_internal.h"
#include "transport/wire/wire.h"

/* The head of a value and a row of its table; gradcomp/samples.h has the layout. */
#define HEAD 16u
#define ROW 24u
#define DATA_ALIGN 64u

static uint64_t aligned(uint64_t at)
{
	return (at + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
}

/* Counts the bytes of head, table and strings; *total of the whole value. */
static gradcomp_status measure(const gradcomp_samples *s, uint64_t index, uint32_t nparts, const char *key,
                               uint64_t *head, uint64_t *total, gradcomp_error *err)
{
	const char *name;
	uint64_t bytes;
	*head = HEAD + (uint64_t)nparts * ROW + strlen(key) + 1;
	for (uint32_t i = 0; i < nparts; i++) {
		gradcomp_status st = s->ops->part(s, index, i, &name, NULL, err);
		if (st)
			return st;
		*head += strlen(name) + 1;
	}
	*total = *head;
	for (uint32_t i = 0; i < nparts; i++) {
		gradcomp_status st = s->ops->part(s, index, i, NULL, &bytes, err);
		if (st)
			return st;
		if (bytes > INT64_MAX - DATA_ALIGN - *total)
			return error_set(err, GRADCOMP_ERR_RANGE, "sample %llu is too large for a value",
			                 (unsigned long long)index);
		*total = aligned(*total) + bytes;
	}
	return *head > UINT32_MAX
	               ? error_set(err, GRADCOMP_ERR_RANGE, "the names of sample %llu are too long for a value",
	                           (unsigned long long)index)
	               : GRADCOMP_OK;
}

/* The parts behind the head, which has been cleared. */
static gradcomp_status fill(const gradcomp_samples *s, uint64_t index, uint32_t nparts, unsigned char *v,
                            uint64_t total, uint64_t text, gradcomp_error *err)
{
	uint64_t at = text, bytes;
	const char *name;
	for (uint32_t i = 0; i < nparts; i++) {
		gradcomp_status st = s->ops->part(s, index, i, &name, NULL, err);
		if (st)
			return st;
		put32(v + HEAD + i * ROW + 16, (uint32_t)at);
		memcpy(v + at, name, strlen(name) + 1);
		at += strlen(name) + 1;
	}
	for (uint32_t i = 0; i < nparts; i++) {
		uint64_t data = aligned(at);
		gradcomp_status st = s->ops->read(s, index, i, v + data, data < total ? total - data : 0, &bytes, err);
		if (st == GRADCOMP_ERR_RANGE)
			return error_set(err, GRADCOMP_ERR_STATE, "sample %llu (%s) became longer while it was read",
			                 (unsigned long long)index, s->ops->key(s, index));
		if (st)
			return st;
		memset(v + at, 0, data - at);
		put64(v + HEAD + i * ROW, data);
		put64(v + HEAD + i * ROW + 8, bytes);
		at = data + bytes;
	}
	return at == total ? GRADCOMP_OK
	                   : error_set(err, GRADCOMP_ERR_STATE, "sample %llu (%s) changed while it was read",
	                               (unsigned long long)index, s->ops->key(s, index));
}

gradcomp_status gradcomp_samples_load(void *samples, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err)
{
	const gradcomp_samples *s = samples;
	gradcomp_sample_info info = {.struct_size = offsetof(gradcomp_sample_info, bytes)};
	uint64_t head, total;
	gradcomp_status st = gradcomp_samples_info(s, index, &info, err);
	const char *key = st ? NULL : s->ops->key(s, index);
	if (!st)
		st = measure(s, index, info.nparts, key, &head, &total, err);
	if (st)
		return st;
	unsigned char *v = out->alloc(out, total);
	if (!v)
		return error_set(err, GRADCOMP_ERR_NOMEM, "there is no memory for the %llu bytes of sample %llu",
		                 (unsigned long long)total, (unsigned long long)index);
	uint64_t text = HEAD + (uint64_t)info.nparts * ROW;
	memset(v, 0, text);
	put32(v, info.nparts);
	put32(v + 4, (uint32_t)info.label);
	put32(v + 8, (uint32_t)head);
	memcpy(v + text, key, strlen(key) + 1);
	return fill(s, index, info.nparts, v, total, text + strlen(key) + 1, err);
}

/* Returns true when the head lies in the value and its strings end in it. */
static bool head_is_right(const unsigned char *v, uint64_t bytes)
{
	return bytes >= HEAD && get32(v + 8) <= bytes && get32(v + 8) > HEAD + (uint64_t)get32(v) * ROW &&
	       !v[get32(v + 8) - 1];
}

static gradcomp_status no_sample(gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_INVALID, "the value was not made by gradcomp_samples_load()");
}

gradcomp_status gradcomp_value_sample(const void *value, uint64_t bytes, gradcomp_sample_info *info,
                                      gradcomp_error *err)
{
	const unsigned char *v = value;
	gradcomp_sample_info got = {.struct_size = info->struct_size};
	if (!head_is_right(v, bytes))
		return no_sample(err);
	got.nparts = get32(v);
	got.label = (int32_t)get32(v + 4);
	got.key = (const char *)v + HEAD + (uint64_t)got.nparts * ROW;
	for (uint32_t i = 0; i < got.nparts; i++)
		got.bytes += get64(v + HEAD + (uint64_t)i * ROW + 8);
	memcpy(info, &got, info->struct_size < sizeof got ? info->struct_size : sizeof got);
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_value_part(const void *value, uint64_t bytes, uint32_t part, const char **name,
                                    const void **data, uint64_t *data_bytes, gradcomp_error *err)
{
	const unsigned char *v = value;
	if (!head_is_right(v, bytes))
		return no_sample(err);
	if (part >= get32(v))
		return error_set(err, GRADCOMP_ERR_RANGE, "the sample has %u parts; there is no part %u", get32(v),
		                 part);
	const unsigned char *row = v + HEAD + (uint64_t)part * ROW;
	uint64_t at = get64(row), n = get64(row + 8);
	if (at > bytes || n > bytes - at || get32(row + 16) >= get32(v + 8))
		return no_sample(err);
	if (name)
		*name = (const char *)v + get32(row + 16);
	if (data)
		*data = v + at;
	if (data_bytes)
		*data_bytes = n;
	return GRADCOMP_OK;
}
