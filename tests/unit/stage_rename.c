/* A cache on a filesystem that knows renames of the old kind alone, as Lustre and older ZFS: they
 * replace a name or fail, and exchange nothing. */
#include <sys/syscall.h>

#include "io/cache/manage.h"
#include "tests/support/stage_fixture.h"

static int refused;

int renameat2(int from, const char *a, int to, const char *b, unsigned flags)
{
	if (!flags)
		return (int)syscall(SYS_renameat2, from, a, to, b, 0);
	refused++;
	errno = EINVAL;
	return -1;
}

int main(void)
{
	char path[8192];
	uint32_t kept = 0;
	bench_begin();
	put("src/a", "one\n");
	is_int(stage(), 0, "staged");
	ok(refused, "without a rename of the new kind");
	is_str(copied("a"), "one\n", "the copy");
	is_int(stage(), 0, "again");
	ok(got.cached, "it is there");
	snprintf(path, sizeof path, "%s/a", got.path);
	must(unlink(path), path);
	is_int(stage(), 0, "a damaged one");
	ok(!got.cached, "is made anew");
	is_str(copied("a"), "one\n", "in the place of the old one");
	is_int(in_cache(""), 1, "of which nothing is left");
	is_int(gradcomp_cache_clear(NULL, NULL, NULL, &kept, &why), 0, "cleared");
	is_int(in_cache(""), 0, "nothing is left");
	return done_testing();
}
