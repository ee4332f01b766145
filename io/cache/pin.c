/* Pins and the leases of jobs: files in KEY.lease that a command or a prolog writes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "io/cache/manage_internal.h"

/* Writes the lease before the copy is looked for, as every lease is; without a copy it is removed. */
static gradcomp_status add_lease(const gradcomp_cache_options *options, const char *key, const cache_lease_info *l,
                                 gradcomp_error *err)
{
	struct stat sb;
	cache_area a;
	gradcomp_status st = cache_key_check(key, err);
	if (st || (st = cache_area_begin(&a, options, true, err)))
		return st;
	if (a.empty || fstatat(a.fd, key, &sb, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(sb.st_mode)) {
		st = cache_no_copy(&a, key, err);
	} else if (!cache_area_dry(&a) && !(st = cache_lease_write(a.fd, key, l, err)) &&
	           fstatat(a.fd, key, &sb, AT_SYMLINK_NOFOLLOW) < 0) {
		cache_lease_drop(a.fd, key, l->name);
		st = cache_no_copy(&a, key, err);
	}
	cache_area_end(&a);
	return st;
}

gradcomp_status gradcomp_cache_pin(const gradcomp_cache_options *options, const char *key, gradcomp_error *err)
{
	const cache_lease_info pin = {.name = "pin", .holder = "pin", .pin = true};
	return add_lease(options, key, &pin, err);
}

gradcomp_status gradcomp_cache_unpin(const gradcomp_cache_options *options, const char *key, gradcomp_error *err)
{
	cache_area a;
	gradcomp_status st = cache_key_check(key, err);
	if (st || (st = cache_area_begin(&a, options, true, err)))
		return st;
	if (!a.empty && !cache_area_dry(&a) && cache_lease_drop(a.fd, key, "pin") < 0)
		st = text_cannot(err, "unpin", key);
	cache_area_end(&a);
	return st;
}

gradcomp_status gradcomp_cache_lease_job(const gradcomp_cache_options *options, const char *key, int64_t job,
                                         const char *holder, gradcomp_error *err)
{
	cache_lease_info l = {.job = job};
	if (job < 1 || job > INT32_MAX * 2LL)
		return error_set(err, GRADCOMP_ERR_INVALID, "%lld is not the number of a job", (long long)job);
	snprintf(l.name, sizeof l.name, "job-%lld", (long long)job);
	if (holder)
		snprintf(l.holder, sizeof l.holder, "%s", holder);
	else
		snprintf(l.holder, sizeof l.holder, "job %lld", (long long)job);
	cache_boot(l.boot);
	return add_lease(options, key, &l, err);
}
