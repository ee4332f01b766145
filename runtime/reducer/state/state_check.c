#include "reducer/state/state_check.h"

#include "base/error.h"
#include "config/spec.h"
#include "step/layout.h"

#include <math.h>
#include <string.h>

const engine *state_owner(const reducer *r, const bucketing *d)
{
	return d->list.shards ? d->list.shards : &r->eng;
}

enum { KEPT = STATE_SPEC - 1 }; /* bytes of a SPEC */

/* A parameter that the plugin has got since has its default in what is older. */
static int same_compressor(const reducer *r, const char *text)
{
	gradcomp_error unused;
	spec s = {0};
	int same = !strncmp(text, r->eng.compressor_spec, KEPT);
	if (!same && strlen(text) < KEPT && !spec_parse(&r->eng.compressor->info, text, &s, &unused))
		same = !strncmp(s.text, r->eng.compressor_spec, KEPT);
	spec_clear(&s);
	return same;
}

gradcomp_status state_check_model(const reducer *r, const char *what, const char *compressor, uint64_t tensors,
                                  uint64_t numel, gradcomp_error *err)
{
	if (!same_compressor(r, compressor))
		return error_set(err, GRADCOMP_ERR_MISMATCH, "load: the %s is of '%s', this reducer is '%.*s'", what,
		                 compressor, KEPT, r->eng.compressor_spec);
	if (tensors != layout_hash(&r->eng.layout) || numel != r->eng.layout.numel)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "load: the %s is of a model of %llu parameters in other tensors; this one has %llu",
		                 what, (unsigned long long)numel, (unsigned long long)r->eng.layout.numel);
	return GRADCOMP_OK;
}

gradcomp_status state_check_bytes(const reducer *r, saved_kind kind, const void *state, uint64_t bytes,
                                  uint64_t plugin_bytes, gradcomp_error *err)
{
	gradcomp_status st = saved_check(kind, state, bytes, err);
	if (!st && plugin_bytes && !r->eng.compressor->load)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "load: compressor '%s' keeps no state of its own, this has %llu bytes",
		                 r->eng.compressor->info.name, (unsigned long long)plugin_bytes);
	return st;
}

gradcomp_status state_check_finite(const gradcomp_operators *ops, const char *what, const void *floats, uint64_t bytes,
                                   gradcomp_error *err)
{
	float run[4096];
	for (uint64_t at = 0; at < bytes; at += sizeof run) {
		uint64_t n = bytes - at < sizeof run ? bytes - at : sizeof run;
		int bad = 0;
		memcpy(run, (const char *)floats + at, n);
		ops->nonfinite(NULL, run, n / sizeof *run, &bad);
		for (uint64_t i = 0; bad && i < n / sizeof *run; i++)
			if (!isfinite(run[i]))
				return error_set(err, GRADCOMP_ERR_INVALID,
				                 "load: the %s keeps %g at number %llu: only finite numbers are right",
				                 what, (double)run[i], (unsigned long long)(at / sizeof *run + i));
	}
	return GRADCOMP_OK;
}
