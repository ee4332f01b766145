#include "gradcomp/sdk/payload.h"

#include <string.h>

#include "gradcomp/sdk/state.h"

gradcomp_round sdk_gathered_round(uint64_t bytes)
{
	return (gradcomp_round){.pattern = GRADCOMP_GATHERED, .flags = GRADCOMP_ROUND_FIXED, .bound = bytes};
}

static gradcomp_status expect_ranks(const gradcomp_host *host, const gradcomp_layout *layout, const char *name,
                                    uint32_t n, gradcomp_error *err)
{
	if (n == (uint32_t)layout->nranks)
		return GRADCOMP_OK;
	return host->fail(err, GRADCOMP_ERR_INTERNAL, "%s: %u payloads for %d ranks", name, n, layout->nranks);
}

gradcomp_status sdk_gathered_expect(const gradcomp_host *host, const gradcomp_layout *layout, const char *name,
                                    const gradcomp_work *work, const gradcomp_payload *in, uint32_t n, uint64_t bytes,
                                    gradcomp_error *err)
{
	gradcomp_status st = expect_ranks(host, layout, name, n, err);
	for (uint32_t w = 0; !st && w < n; w++)
		if (in[w].bytes != bytes)
			st = host->fail(err, GRADCOMP_ERR_MISMATCH,
			                "%s: rank %u sent %llu bytes for bucket %u of %llu numbers, %llu are right",
			                name, w, (unsigned long long)in[w].bytes, work->bucket->index,
			                (unsigned long long)work->bucket->numel, (unsigned long long)bytes);
	return st;
}

gradcomp_status sdk_gathered_refuse(const gradcomp_host *host, const char *name, const gradcomp_work *work,
                                    uint32_t rank, const char *what, gradcomp_error *err)
{
	return host->fail(err, GRADCOMP_ERR_MISMATCH, "%s: rank %u sent %s for bucket %u", name, rank, what,
	                  work->bucket->index);
}

gradcomp_status sdk_overflow(const gradcomp_host *host, const char *name, const gradcomp_work *work, const float *x,
                             uint64_t n, float most, gradcomp_error *err)
{
	int found = 0;
	work->operators->range_check(work->queue, work->device == GRADCOMP_HOST ? &found : &work->fault[1], x, n, -most,
	                             most);
	return found ? host->fail(err, GRADCOMP_ERR_OVERFLOW, "%s: numbers of bucket %u overflow", name,
	                          work->bucket->index)
	             : GRADCOMP_OK;
}

gradcomp_round sdk_payload_round(uint64_t most)
{
	return (gradcomp_round){.pattern = GRADCOMP_GATHERED, .bound = sizeof(sdk_payload_header) + most};
}

static uint32_t kind_of(const char *name, uint32_t version)
{
	uint64_t digest = sdk_state_digest_add(SDK_STATE_DIGEST_SEED, version);
	for (; *name; name++)
		digest = sdk_state_digest_add(digest, (unsigned char)*name);
	return (uint32_t)(digest ^ digest >> 32);
}

void *sdk_payload_begin(gradcomp_payload *out)
{
	return (char *)out->data + sizeof(sdk_payload_header);
}

void sdk_payload_end(gradcomp_payload *out, const char *name, uint32_t version, const gradcomp_work *work,
                     uint64_t bytes)
{
	sdk_payload_header head = {
		.kind = kind_of(name, version), .bucket = work->bucket->index, .step = work->step, .bytes = bytes};
	memcpy(out->data, &head, sizeof head);
	out->bytes = sizeof head + bytes;
}

gradcomp_status sdk_payload_expect(const gradcomp_host *host, const gradcomp_layout *layout, const char *name,
                                   uint32_t version, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                                   uint64_t most, gradcomp_error *err)
{
	gradcomp_status st = expect_ranks(host, layout, name, n, err);
	for (uint32_t w = 0; !st && w < n; w++) {
		sdk_payload_header head;
		if (in[w].bytes < sizeof head)
			return sdk_gathered_refuse(host, name, work, w, "a payload without a header", err);
		memcpy(&head, in[w].data, sizeof head);
		if (head.kind != kind_of(name, version))
			st = sdk_gathered_refuse(host, name, work, w, "a payload of another plugin or version", err);
		else if (head.bucket != work->bucket->index || head.step != work->step)
			st = host->fail(err, GRADCOMP_ERR_MISMATCH,
			                "%s: rank %u sent bucket %u of step %llu, bucket %u of step %llu is right",
			                name, w, head.bucket, (unsigned long long)head.step, work->bucket->index,
			                (unsigned long long)work->step);
		else if (head.bytes != in[w].bytes - sizeof head || head.bytes > most)
			st = host->fail(
				err, GRADCOMP_ERR_MISMATCH,
				"%s: rank %u sent %llu bytes for bucket %u, its header says %llu, and at most %llu are right",
				name, w, (unsigned long long)(in[w].bytes - sizeof head), work->bucket->index,
				(unsigned long long)head.bytes, (unsigned long long)most);
	}
	return st;
}

const void *sdk_payload_body(const gradcomp_payload *in, uint64_t *bytes)
{
	*bytes = in->bytes - sizeof(sdk_payload_header);
	return (const char *)in->data + sizeof(sdk_payload_header);
}
