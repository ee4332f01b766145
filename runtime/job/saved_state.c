#include "job/saved_state.h"

#include "base/error.h"
#include "job/job.h"

#include <string.h>
#include <xxhash.h>

static uint64_t xxh(const void *bytes, size_t n)
{
	return XXH64(bytes, n, 0);
}

static const struct {
	const char *magic; /* and the version that is written */
	char oldest;       /* that is read */
	const char *what;
	uint64_t (*sum)(const void *bytes, size_t n);
} kinds[] = {
	[SAVED_REDUCER] = {"GCSTATE3", '2', "state of a reducer", saved_hash},
	[SAVED_SHARED] = {"GCSHARE1", '1', "shared state of a reducer", saved_hash},
	[SAVED_DELAY] = {"GCDELAY1", '1', "state of a reducer with a delay", xxh},
	[SAVED_AUTO] = {"GCAUTO01", '1', "state of auto", xxh},
	[SAVED_SHARED_AUTO] = {"GCSHAREA", 'A', "shared state of auto", xxh},
	[SAVED_CODER] = {"GCCODER1", '1', "state of a coder", xxh},
	[SAVED_BY_NAME] = {"GCNAMES1", '1', "state of a reducer with SPECs by name", xxh},
	[SAVED_SHARED_BY_NAME] = {"GCNSHAR1", '1', "shared state of a reducer with SPECs by name", xxh},
};
_Static_assert(sizeof kinds / sizeof *kinds == SAVED_KINDS, "each kind has its row");

enum { VERSION_AT = sizeof((saved_head *)NULL)->magic, CHECKED_AT = sizeof(saved_head) };

/* Eight bytes at a time; the tail is padded with zeroes. */
uint64_t saved_hash(const void *bytes, size_t n)
{
	const unsigned char *p = bytes;
	uint64_t h = n, w;
	for (; n >= 8; p += 8, n -= 8) {
		memcpy(&w, p, 8);
		h = (h ^ w) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	w = 0;
	memcpy(&w, p, n);
	return id_mix(h, w);
}

saved_kind saved_kind_of(const void *state, uint64_t bytes)
{
	saved_kind kind = 0;
	if (!state || bytes < sizeof(saved_head))
		return SAVED_KINDS;
	while (kind < SAVED_KINDS && memcmp(state, kinds[kind].magic, VERSION_AT))
		kind++;
	/* The version tells these two apart. */
	if (kind == SAVED_SHARED && ((const char *)state)[VERSION_AT] == kinds[SAVED_SHARED_AUTO].oldest)
		kind = SAVED_SHARED_AUTO;
	return kind;
}

bool saved_is_shared(const void *state, uint64_t bytes)
{
	const saved_kind kind = saved_kind_of(state, bytes);
	return kind == SAVED_SHARED || kind == SAVED_SHARED_AUTO || kind == SAVED_SHARED_BY_NAME;
}

gradcomp_status saved_read(saved_kind kind, const void *state, uint64_t bytes, void *head, size_t n,
                           gradcomp_error *err)
{
	const saved_kind is = saved_kind_of(state, bytes);
	const char newest = kinds[kind].magic[VERSION_AT], oldest = kinds[kind].oldest;
	if (is == SAVED_KINDS || bytes < n)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: %llu bytes are no saved %s",
		                 (unsigned long long)bytes, kinds[kind].what);
	if (is != kind)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: a %s was given, and a %s is needed here",
		                 kinds[is].what, kinds[kind].what);
	const char version = ((const char *)state)[VERSION_AT];
	if (version < oldest || version > newest)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "load: a %s of version '%c', this library reads versions '%c' to '%c'",
		                 kinds[kind].what, version, oldest, newest);
	memcpy(head, state, n);
	return GRADCOMP_OK;
}

static uint64_t sum(saved_kind kind, const void *state, uint64_t bytes)
{
	return kinds[kind].sum((const char *)state + CHECKED_AT, bytes - CHECKED_AT);
}

gradcomp_status saved_check(saved_kind kind, const void *state, uint64_t bytes, gradcomp_error *err)
{
	saved_head h;
	memcpy(&h, state, sizeof h);
	return h.checksum == sum(kind, state, bytes)
	               ? GRADCOMP_OK
	               : error_set(err, GRADCOMP_ERR_INVALID,
	                           "load: the %s of %llu bytes is damaged (its checksum differs)", kinds[kind].what,
	                           (unsigned long long)bytes);
}

void saved_seal(saved_kind kind, void *state, uint64_t bytes)
{
	saved_head h = {.checksum = sum(kind, state, bytes)};
	memcpy(&h, kinds[kind].magic, VERSION_AT + 1);
	memcpy(state, &h, sizeof h);
}
