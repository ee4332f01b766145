#include "gradcomp/sdk/codes.h"

#include "gradcomp/sdk/payload.h"

/* One launch takes so many. */
enum { PARTS = 40, RANKS = 128 };

static void sum_some(const sdk_codes *c, gradcomp_coded *part, uint32_t parts, const gradcomp_payload *in, uint32_t n,
                     float a, int *fault)
{
	const void *payload[RANKS];
	uint32_t r = 0;
	do {
		const uint32_t some = n - r < RANKS ? n - r : RANKS;
		for (uint32_t i = 0; i < some; i++)
			payload[i] = in[r + i].data;
		c->work->operators->codes_sum(c->work->queue, c->coding, part, parts, payload, some, a, fault);
		for (uint32_t i = 0; i < parts; i++)
			part[i].x = part[i].y;
		r += some;
	} while (r < n);
}

static void sum_all(const sdk_codes *c, const gradcomp_payload *in, uint32_t n, int only_check, float a, int *fault)
{
	for (uint32_t first = 0; first < c->parts; first += PARTS) {
		const uint32_t some = c->parts - first < PARTS ? c->parts - first : PARTS;
		gradcomp_coded part[PARTS] = {{0}};
		for (uint32_t i = 0; i < some; i++) {
			c->part(c->ctx, first + i, &part[i]);
			if (only_check)
				part[i].y = NULL;
		}
		sum_some(c, part, some, in, n, a, fault);
	}
}

gradcomp_status sdk_codes_check(const sdk_codes *c, const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	if (c->work->device != GRADCOMP_HOST)
		return GRADCOMP_OK;
	for (uint32_t r = 0; r < n; r++) {
		int bad = 0;
		sum_all(c, &in[r], 1, 1, 0, &bad);
		if (bad)
			return sdk_gathered_refuse(c->host, c->name, c->work, r, c->fault, err);
	}
	return GRADCOMP_OK;
}

void sdk_codes_sum(const sdk_codes *c, const gradcomp_payload *in, uint32_t n, float a)
{
	sum_all(c, in, n, 0, a, c->work->device == GRADCOMP_HOST ? NULL : c->work->fault);
}

static void same_part(void *ctx, uint32_t i, gradcomp_coded *to)
{
	(void)i;
	*to = *(const gradcomp_coded *)ctx;
}

gradcomp_status sdk_quantised_average(const gradcomp_host *host, const char *name, const gradcomp_work *work,
                                      const gradcomp_quantiser *q, const gradcomp_payload *in, uint32_t n, int own,
                                      const char *fault, gradcomp_error *err)
{
	const gradcomp_coding coding = {
		.struct_size = sizeof coding, .kind = GRADCOMP_CODING_QUANTISED, .quantiser = q};
	const uint64_t d = work->bucket->numel;
	gradcomp_coded part = {.y = work->error_flat,
	                       .x = work->flat,
	                       .n = d,
	                       .codes = q->norm == GRADCOMP_NORM_GIVEN ? 0
	                                                               : (d + q->block - 1) / q->block * sizeof(float)};
	const sdk_codes codes = {.host = host,
	                         .name = name,
	                         .work = work,
	                         .coding = &coding,
	                         .fault = fault,
	                         .parts = 1,
	                         .part = same_part,
	                         .ctx = &part};
	gradcomp_status st = sdk_codes_check(&codes, in, n, err);
	if (st)
		return st;
	if (own >= 0)
		sdk_codes_sum(&codes, &in[own], 1, -1);
	part.y = work->flat;
	part.x = NULL;
	sdk_codes_sum(&codes, in, n, 1.0f / (float)n);
	return GRADCOMP_OK;
}
