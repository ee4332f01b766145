/* A server that lies about names, sizes and links (tests/plugins/source/nfs.c): nothing is
 * written outside of the copy, nothing is published, and the reason names the thing. */
#include <time.h>

#include "tests/support/pace.h"
#include "tests/support/stage_fixture.h"

static const struct {
	const char *lie;
	const char *words; /* those of the reason; NULL: it is staged */
} lies[] = {
	{"honest", NULL},
	{"up", "'..' in nfs://liar/up is listed there, but no file can have such a name"},
	{"climb", "'../../../planted' in nfs://liar/"},
	{"slash", "'d/x' in nfs://liar/"},
	{"absolute", "'/var/tmp/planted' in nfs://liar/"},
	{"nameless", "'' in nfs://liar/"},
	{"dot", "'.' in nfs://liar/"},
	{"long", "no file can have such a name"},
	{"twice", "d was listed twice"},
	{"deep", "has a path of more than 4095 bytes"},
	{"outside", "the symbolic link l leads out of the tree"},
	{"aimless", "the symbolic link l is empty"},
	{"full", "no space: needs"},
	{"wrapped", "add up to more than"},
	{"huge", "'a' in nfs://liar/huge is listed with more bytes than a file can have"},
	{"device", "a is a block device"},
	{"typeless", "a is of an unknown type"},
	{"shorter", "f became shorter"},
	{"changes", "f was written to"},
	{"breaks", "the liar's disk is broken"},
	{"linked", NULL},
};

int main(void)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4200], source[64];
	bench_begin();
	snprintf(path, sizeof path, "%s/tests/plugins", build ? build : ".");
	setenv("GRADCOMP_PLUGIN_PATH", path, 1);
	if (unlink("/var/tmp/planted") == 0)
		printf("# /var/tmp/planted was there before\n");
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		const char *words = lies[i].words;
		snprintf(source, sizeof source, "nfs://liar/%s", lies[i].lie);
		gradcomp_stage_options o = {.struct_size = sizeof o, .source = source};
		time_t begin = time(NULL);
		why.text[0] = 0;
		gradcomp_status st = gradcomp_stage(&o, &got, &why);
		ok(words ? st < 0 : !st, "%s: %s", lies[i].lie, words ? "is refused" : "is staged");
		if (words)
			like(why.text, words, lies[i].lie);
		else if (st)
			printf("# %s\n", why.text);
		ok(in_time((double)(time(NULL) - begin), 10), "%s: soon", lies[i].lie);
		is_int(in_cache(""), words ? 0 : 1, "%s: and that is all there is in the cache", lies[i].lie);
		ok(system("test -z \"$(find . /var/tmp/planted -name planted 2>/dev/null)\"") == 0,
		   "%s: nothing is planted", lies[i].lie);
		must(system("rm -rf cache/*") ? -1 : 0, "cache");
	}
	return done_testing();
}
