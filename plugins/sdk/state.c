#include "gradcomp/sdk/state.h"

#include <string.h>

sdk_state_header sdk_state_header_make(const gradcomp_layout *layout, const char *name, uint32_t version,
                                       uint64_t parameters, uint64_t bytes)
{
	sdk_state_header s = {.version = version,
	                      .nranks = (uint32_t)layout->nranks,
	                      .shapes = SDK_STATE_DIGEST_SEED,
	                      .parameters = parameters,
	                      .bytes = bytes};
	strncpy(s.compressor, name, sizeof s.compressor - 1);
	for (uint32_t i = 0; i < layout->ntensors; i++) {
		const gradcomp_tensor *t = &layout->tensors[i];
		for (uint32_t k = 0; k < t->ndim; k++)
			s.shapes = sdk_state_digest_add(s.shapes, t->dims[k]);
		s.shapes = sdk_state_digest_add(s.shapes, ~(uint64_t)t->ndim);
	}
	return s;
}

gradcomp_status sdk_state_header_write(const gradcomp_host *host, const sdk_state_header *head, void *out,
                                       uint64_t capacity, uint64_t *bytes, void **body, gradcomp_error *err)
{
	*bytes = sizeof *head + head->bytes;
	*body = NULL;
	if (!out)
		return GRADCOMP_OK;
	if (capacity < *bytes)
		return host->fail(err, GRADCOMP_ERR_INVALID, "%s: state needs %llu bytes, the buffer has %llu",
		                  head->compressor, (unsigned long long)*bytes, (unsigned long long)capacity);
	memcpy(out, head, sizeof *head);
	*body = (char *)out + sizeof *head;
	return GRADCOMP_OK;
}

gradcomp_status sdk_state_header_check(const gradcomp_host *host, const sdk_state_header *want, const void *in,
                                       uint64_t bytes, gradcomp_error *err)
{
	const char *name = want->compressor;
	sdk_state_header got;
	if (bytes < sizeof got)
		return host->fail(err, GRADCOMP_ERR_INVALID, "%s: a state of %llu bytes is cut short", name,
		                  (unsigned long long)bytes);
	memcpy(&got, in, sizeof got);
	if (memcmp(got.compressor, want->compressor, sizeof got.compressor))
		return host->fail(err, GRADCOMP_ERR_MISMATCH, "%s: this is not a state of %s", name, name);
	if (got.version != want->version)
		return host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "%s: state of version %u, this plugin reads %u", name,
		                  got.version, want->version);
	if (got.shapes != want->shapes)
		return host->fail(err, GRADCOMP_ERR_MISMATCH, "%s: state of a model whose tensors have other shapes",
		                  name);
	if (got.parameters != want->parameters || got.bytes != want->bytes)
		return host->fail(err, GRADCOMP_ERR_MISMATCH,
		                  "%s: state of other parameters: it holds %llu bytes, with these it would be %llu",
		                  name, (unsigned long long)got.bytes, (unsigned long long)want->bytes);
	if (bytes != sizeof got + want->bytes)
		return host->fail(err, GRADCOMP_ERR_INVALID, "%s: a state of %llu bytes, %llu are right", name,
		                  (unsigned long long)bytes, (unsigned long long)(sizeof got + want->bytes));
	return GRADCOMP_OK;
}
