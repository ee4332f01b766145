/* Copies made, used and looked after with every allocation failing in turn: memory, a
 * mapping, a descriptor, a thread. The call fails in words or needs it not, nothing is kept,
 * and what is in the cache is whole or not there. */
#include "tests/support/inject/each_allocation.h"

#include "io/cache/manage.h"
#include "tests/support/stage_fixture.h"

static char key[65];

static void must_run(const char *command)
{
	must(system(command) ? -1 : 0, command);
}

static int take_key(void *ctx, const gradcomp_cache_entry *e)
{
	(void)ctx;
	if (e->kind == GRADCOMP_CACHE_PUBLISHED)
		snprintf(key, sizeof key, "%s", e->key);
	return 0;
}

/* The functions below do what is done before, by nobody who fails. */

static void nothing(void)
{
	must_run("rm -rf cache/*");
}

static void a_copy(void)
{
	nothing();
	must(stage(), "a copy");
	must(gradcomp_cache_each(NULL, take_key, NULL, &why), "its key");
}

static void a_damaged_copy(void)
{
	char command[8300];
	a_copy();
	snprintf(command, sizeof command, "chmod u+w '%s/a' && echo damage >'%s/a'", got.path, got.path);
	must_run(command);
}

static void a_leased_copy(void)
{
	a_copy();
	must(gradcomp_cache_lease_job(NULL, key, 7, "job 7", &why), "a lease");
}

/* The functions below do what may fail. */

static gradcomp_status lease(gradcomp_error *err)
{
	return gradcomp_cache_lease_job(NULL, key, 7, "job 7", err);
}

static gradcomp_status pin(gradcomp_error *err)
{
	gradcomp_status st = gradcomp_cache_pin(NULL, key, err);
	return st ? st : gradcomp_cache_unpin(NULL, key, err);
}

static int each_entry(void *ctx, const gradcomp_cache_entry *e)
{
	(void)ctx;
	(void)e;
	return 0;
}

static gradcomp_status list(gradcomp_error *err)
{
	gradcomp_cache_usage usage = {.struct_size = sizeof usage};
	gradcomp_status st = gradcomp_cache_each(NULL, each_entry, NULL, err);
	return st ? st : gradcomp_cache_get_usage(NULL, &usage, err);
}

static void damaged(void *ctx, const char *where, const char *file, const char *what)
{
	(void)ctx;
	(void)where;
	(void)file;
	(void)what;
}

static gradcomp_status verify(gradcomp_error *err)
{
	return gradcomp_cache_verify(NULL, NULL, damaged, NULL, err);
}

static void removed(void *ctx, const char *what, const char *name, uint64_t bytes)
{
	(void)ctx;
	(void)what;
	(void)name;
	(void)bytes;
}

static gradcomp_status collect(gradcomp_error *err)
{
	gradcomp_status st = gradcomp_cache_gc(NULL, 7, removed, NULL, err);
	return st ? st : gradcomp_cache_gc(NULL, 0, removed, NULL, err);
}

static gradcomp_status evict(gradcomp_error *err)
{
	return gradcomp_cache_evict(NULL, key, removed, NULL, err);
}

static gradcomp_status make(gradcomp_error *err)
{
	gradcomp_stage_options o = {.struct_size = sizeof o, .source = "src", .workers = 2};
	return gradcomp_stage(&o, &got, err);
}

static gradcomp_status make_again(gradcomp_error *err)
{
	gradcomp_stage_options o = {
		.struct_size = sizeof o, .source = "src", .workers = 2, .flags = GRADCOMP_STAGE_VERIFY};
	return gradcomp_stage(&o, &got, err);
}

/* With room for everything: a copy is whole, and nothing that failed stands in its way. */
static const char *recovers(gradcomp_status status)
{
	(void)status;
	if (gradcomp_cache_each(NULL, each_entry, NULL, &why))
		return why.text;
	if (stage_with(GRADCOMP_STAGE_VERIFY, NULL, NULL))
		return why.text;
	return strcmp(copied("a"), "one\n") || strcmp(copied("d/b"), "two\n") ? "the copy is wrong" : NULL;
}

/* Half of them a day. */
static void each(const char *what, void (*prepare)(void), gradcomp_status (*body)(gradcomp_error *err), int least)
{
	static unsigned long n;
	if (!tap_in_part(n++, 2))
		return;
	each_allocation_fails(&(each_allocation){what, body, least, prepare, recovers});
}

int main(void)
{
	bench_begin_in("/dev/shm");
	must_run(
		"mkdir -p src/d/e && echo one >src/a && echo two >src/d/b && ln src/a src/d/c && ln -s ../a src/d/l && "
		"truncate -s 300000 src/h && echo hole >>src/h && head -c 100000 /dev/urandom >src/d/e/y");
	each("a copy", nothing, make, 5);
	each("one that is there", a_copy, make, 3);
	each("one in place of a damaged one", a_damaged_copy, make_again, 5);
	each("a lease", a_copy, lease, 2);
	each("a pin", a_copy, pin, 2);
	each("a list", a_leased_copy, list, 2);
	each("verifying", a_copy, verify, 2);
	each("collecting", a_leased_copy, collect, 1);
	each("an eviction", a_copy, evict, 1);
	return done_testing();
}
