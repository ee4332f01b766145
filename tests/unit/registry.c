/* Plugins: found by name, refused with a reason, matched in pairs. Uses the
 * fixtures of tests/plugins, and copies of one that are then damaged. */
#include "base/module.h"
#include "plugin/compat.h"
#include "plugin/operators_v1.h"
#include "plugin/spec_table.h"
#include "plugin/plugin_host.h"

#include "base/error.h"

#include "tests/support/slurp.h"
#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char fixtures[400], compressors[128];
static gradcomp_error e;

static config *config_with(const char *directories)
{
	char path[1000];
	const char *set[] = {path, NULL};
	config *c;
	snprintf(path, sizeof path, "gradcomp.plugin_path=%s", directories);
	if (config_load(set, &c, &e)) {
		printf("Bail out! %s\n", e.text);
		exit(1);
	}
	return c;
}

static const char *opened(const config *c, gradcomp_plugin_kind kind, const char *name)
{
	const plugin *p;
	if (registry_open(c, kind, name, &p, &e))
		return e.text;
	return p->info->name;
}

static const char *place(const char *name)
{
	static char path[200];
	snprintf(path, sizeof path, "%s/%s.so", compressors, name);
	return path;
}

static void put_file(const char *name, const void *data, size_t bytes, mode_t mode)
{
	FILE *f = fopen(place(name), "w");
	if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) || chmod(place(name), mode))
		exit(2);
}

static void good(const config *c)
{
	const plugin *p, *q;
	is_int(registry_open(c, GRADCOMP_KIND_COMPRESSOR, "sample", &p, &e), 0, "a plugin");
	ok(p->compressor && !p->collective && p->compressor->encode, "is a compressor");
	is_int(p->info->nparams, 6, "has its table");
	is_int(registry_open(c, GRADCOMP_KIND_COMPRESSOR, "sample", &q, &e), 0, "once more");
	ok(p == q, "is the same");
	is_int(registry_open(c, GRADCOMP_KIND_COLLECTIVE, "both", &q, &e), 0, "a collective");
	ok(q->collective && !q->compressor, "is a collective");
}

static void descriptors(const config *c)
{
	static const struct {
		const char *name, *says;
	} cases[] = {
		{"newer_abi", "field abi_version: found 4, expected at most 3"},
		{"no_abi", "field abi_version: found 0, expected 1 to 3"},
		{"short_struct", "field struct_size: found "},
		{"long_struct", "field struct_size: found "},
		{"wrong_name", "field name: found 'right_name', expected 'wrong_name'"},
		{"no_patterns", "field patterns: found 0x0"},
		{"odd_pattern", "field patterns: found 0x200, expected one or more bits of 0xf"},
		{"odd_trait", "field traits: found 0x100000"},
		{"no_encode", "function encode is missing"},
		{"no_merge", "function merge is missing, which pattern MERGED needs"},
		{"reserved", "a reserved word of the descriptor is not zero"},
		{"bad_default", "the default of a parameter is wrong: rank: '99' is too large"},
		{"bad_range", "parameter 'rank' has the range 64..1"},
		{"bad_param", "parameter 0 has no name made of a-z"},
		{"bad_choice", "parameter 'type' is a choice without choices"},
		{"twin", "parameter 'rank' stands in the table twice"},
		{"no_symbol", "does not export gradcomp_compressor_v1"},
		{"not_constant", "gradcomp_compressor_v1 is not a constant"},
	};

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const plugin *p;
		is_int(registry_open(c, GRADCOMP_KIND_COMPRESSOR, cases[i].name, &p, &e), GRADCOMP_ERR_ABI,
		       "refused: %s", cases[i].name);
		like(e.text, cases[i].says, cases[i].name);
	}
	like(opened(c, GRADCOMP_KIND_COLLECTIVE, "promise"),
	     "function allgather is missing, which field serves promises", "a collective's promise");
}

static void missing(const config *c)
{
	config *none = config_with("/nonexistent:/tmp");
	like(opened(c, GRADCOMP_KIND_COLLECTIVE, "bth"),
	     "collective 'bth' is not installed (did you mean 'both'?); there "
	     "are both, promise, sumonly, whole (in collectives of ",
	     "a missing plugin");
	like(opened(c, GRADCOMP_KIND_COLLECTIVE, "sample"), "collective 'sample' is not installed; there are",
	     "a name of the other kind");
	like(opened(none, GRADCOMP_KIND_COMPRESSOR, "topk"),
	     "'topk' is not installed; there are none (in compressors of "
	     "/nonexistent:/tmp)",
	     "nothing installed");
	like(opened(c, GRADCOMP_KIND_COMPRESSOR, "../compressors/sample"), "cannot be a name", "a path is no name");
	config_free(none);
}

/* At every length that is not the whole: what this is about is SIGBUS. */
static int refused_when_cut(const config *c, const char *data, size_t bytes, size_t step)
{
	const plugin *p;
	for (size_t n = 0; n < bytes; n += step) {
		put_file("sample", data, n, 0644);
		if (registry_open(c, GRADCOMP_KIND_COMPRESSOR, "sample", &p, &e) != GRADCOMP_ERR_ABI)
			return 0;
	}
	put_file("sample", data, bytes - 1, 0644);
	return registry_open(c, GRADCOMP_KIND_COMPRESSOR, "sample", &p, &e) == GRADCOMP_ERR_ABI &&
	       strstr(e.text, "is truncated: it has ");
}

static void damaged(void)
{
	config *c = config_with(tmpdir);
	char from[500], says[500];
	size_t bytes;
	char *data;
	snprintf(from, sizeof from, "%s/compressors/sample.so", fixtures);
	data = slurp(from, &bytes);
	ok(refused_when_cut(c, data, bytes, 97), "a truncated plugin is refused at every length");
	put_file("text", "this is a text\n", 15, 0644);
	like(opened(c, GRADCOMP_KIND_COMPRESSOR, "text"), "text.so cannot be loaded: ", "a text file");
	put_file("empty", "", 0, 0644);
	like(opened(c, GRADCOMP_KIND_COMPRESSOR, "empty"), "empty.so cannot be loaded: ", "an empty file");
	put_file("sample", data, bytes, 0666);
	like(opened(c, GRADCOMP_KIND_COMPRESSOR, "sample"),
	     "can be written by everybody (mode 0666); mend it with: chmod go-w", "a plugin everybody can write");
	put_file("sample", data, bytes, 0644);
	chmod(compressors, 0777);
	snprintf(says, sizeof says, "%s can be written by everybody (mode 0777)", compressors);
	like(opened(c, GRADCOMP_KIND_COMPRESSOR, "sample"), says, "a directory everybody can write");
	chmod(compressors, 0755);
	is_str(opened(c, GRADCOMP_KIND_COMPRESSOR, "sample"), "sample", "after chmod it loads");

	if (mkdir(place("folder"), 0755) || mkfifo(place("pipe"), 0644) || symlink("/dev/null", place("device")) ||
	    symlink("nowhere.so", place("dangling")))
		exit(2);
	like(opened(c, GRADCOMP_KIND_COMPRESSOR, "folder"), "folder.so is a directory, not a regular file",
	     "a directory");
	like(opened(c, GRADCOMP_KIND_COMPRESSOR, "pipe"), "pipe.so is a FIFO, not a regular file", "a FIFO");
	like(opened(c, GRADCOMP_KIND_COMPRESSOR, "device"), "device.so is a device, not a regular file", "a device");
	like(opened(c, GRADCOMP_KIND_COMPRESSOR, "dangling"), "not installed", "a dangling link");
	snprintf(says, sizeof says, "%s/collectives/both.so", fixtures);
	if (symlink(says, place("both")))
		exit(2);
	like(opened(c, GRADCOMP_KIND_COMPRESSOR, "both"),
	     "is a collective plugin; it belongs into the folder collectives", "a plugin of the other kind");

	free(data);
	config_free(c);
}

struct listing {
	char names[400];
	int usable, unusable;
};

static int list_one(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	struct listing *l = ctx;
	size_t n = strlen(l->names);
	snprintf(l->names + n, sizeof l->names - n, "%s ", name);
	if (info && !reason && *path)
		l->usable++;
	else if (!info && reason && *reason)
		l->unusable++;
	return !strcmp(name, "pipe") ? 7 : 0;
}

static void listing(const config *fixed)
{
	char both[500];
	struct listing l = {0};
	put_file("Upper", "x", 1, 0644);
	is_int(registry_each(fixed, GRADCOMP_KIND_COLLECTIVE, list_one, &l), 0, "every collective");
	is_str(l.names, "both promise sumonly whole ", "by name");
	is_int(l.usable, 3, "three can be used");
	is_int(l.unusable, 1, "one cannot");

	memset(&l, 0, sizeof l);
	snprintf(both, sizeof both, "%s:%s", tmpdir, fixtures);
	config *c = config_with(both);
	is_int(registry_each(c, GRADCOMP_KIND_COMPRESSOR, list_one, &l), 7, "stops when told to");
	ok(!strncmp(l.names, "Upper bad_choice ", 17), "two directories in one list");
	const plugin *p;
	is_int(registry_open(c, GRADCOMP_KIND_COMPRESSOR, "sample", &p, &e), 0, "a name in both");
	ok(!strncmp(p->path, tmpdir, strlen(tmpdir)), "the first directory wins");
	config_free(c);
}

static void pairs(const config *c)
{
	const plugin *sample, *gatherer, *either, *both, *sumonly, *whole;
	if (registry_open(c, GRADCOMP_KIND_COMPRESSOR, "sample", &sample, &e) ||
	    registry_open(c, GRADCOMP_KIND_COMPRESSOR, "gatherer", &gatherer, &e) ||
	    registry_open(c, GRADCOMP_KIND_COMPRESSOR, "either", &either, &e) ||
	    registry_open(c, GRADCOMP_KIND_COLLECTIVE, "both", &both, &e) ||
	    registry_open(c, GRADCOMP_KIND_COLLECTIVE, "sumonly", &sumonly, &e) ||
	    registry_open(c, GRADCOMP_KIND_COLLECTIVE, "whole", &whole, &e)) {
		ok(0, "fixtures load: %s", e.text);
		return;
	}
	is_int(compat_pair(c, sample, sumonly, &e), 0, "sum on sum");
	is_int(compat_pair(c, gatherer, both, &e), 0, "gather on both");
	struct gradcomp_collective_v1 no_gather = *whole->collective;
	plugin exchanges = *whole;
	no_gather.serves &= ~GRADCOMP_CAN_ALLGATHER;
	exchanges.collective = &no_gather;
	is_int(compat_patterns(gatherer, &exchanges), 0, "an exchange is no gather");
	is_int(compat_patterns(either, both), GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED),
	       "what it rather does, where that goes");
	is_int(compat_patterns(either, whole), GRADCOMP_PATTERN_BIT(GRADCOMP_CODED),
	       "what it can do instead, where codes are summed");
	is_int(compat_pair(c, either, whole, &e), 0, "that is a pair");
	is_int(compat_pair(c, either, sumonly, &e), GRADCOMP_ERR_UNSUPPORTED, "neither goes");
	like(e.text, "collectives that serve it: both, whole", "and both kinds are named");
	is_int(compat_pair(c, gatherer, sumonly, &e), GRADCOMP_ERR_UNSUPPORTED, "gather on sum");
	is_str(e.text,
	       "compressor 'gatherer' needs an all-gather, which collective 'sumonly' does not have; collectives that "
	       "serve it: both, whole",
	       "says which would do");
}

/* Ranks compare settings by an all-gather: a job cannot do without. */
static void of_a_job(const config *c)
{
	const plugin *p[2];
	const spec *s[2];
	spec_table t;
	spec_table_init(&t, c);
	is_int(spec_table_both(&t, "sample", "sumonly", p, s, &e), 0, "a reducer's own collective may only sum");
	is_int(spec_table_job(&t, "sample", "sumonly", p, s, &e), GRADCOMP_ERR_UNSUPPORTED, "a job's may not");
	like(e.text, "collective 'sumonly' serves no all-gather, by which the ranks of a job compare their settings",
	     "and is told why");
	is_int(spec_table_job(&t, "sample", "both", p, s, &e), 0, "one that gathers may");
	spec_table_clear(&t);
}

static void resolving(const config *c)
{
	const plugin *p;
	spec s;
	is_int(spec_resolve(c, GRADCOMP_KIND_COMPRESSOR, "sample:rank=8", &p, &s, &e), 0, "a SPEC");
	is_str(s.text, "sample:rank=8,density=0.01,warm=yes,block=256K,type=fp16", "its canonical text");
	spec_clear(&s);
	is_int(spec_resolve(c, GRADCOMP_KIND_COMPRESSOR, "sample:rank=40,density=0.9", &p, &s, &e),
	       GRADCOMP_ERR_INVALID, "what the plugin's own check refuses");
	is_str(e.text, "sample: rank 40 goes with a density of at most 0.5, not 0.9", "in its words");
}

static void *open_both(void *c)
{
	const plugin *sample = NULL, *both = NULL;
	gradcomp_error mine;
	registry_open(c, GRADCOMP_KIND_COLLECTIVE, "both", &both, &mine);
	registry_open(c, GRADCOMP_KIND_COMPRESSOR, "sample", &sample, &mine);
	return both ? (void *)sample : NULL;
}

/* From a path of its own, so that this is the first time. */
static void threads(void)
{
	enum { N = 8 };
	char path[500];
	config *c;
	pthread_t thread[N];
	void *got[N];
	int same = 1;

	snprintf(path, sizeof path, "%s/.", fixtures);
	c = config_with(path);
	for (int i = 0; i < N; i++)
		if (pthread_create(&thread[i], NULL, open_both, c))
			exit(2);
	for (int i = 0; i < N; i++)
		pthread_join(thread[i], &got[i]);
	for (int i = 0; i < N; i++)
		same &= got[i] && got[i] == got[0];
	ok(same, "threads that open a plugin at once get the same one");
	config_free(c);
}

static void modules(const config *c)
{
	const char *path = config_str(c, SET_GRADCOMP_PLUGIN_PATH);
	const void *symbol;
	is_int(module_symbol(path, "collectives/both.so", "gradcomp_collective_v1", &symbol, &e), 0, "a module");
	ok(symbol != NULL, "its symbol");
	is_int(module_symbol(path, "collectives/both.so", "nothing", &symbol, &e), GRADCOMP_ERR_ABI, "another symbol");
	like(e.text, "both.so does not export nothing", "says which");
	is_int(module_symbol(path, "bootstrap/nothing.so", "x", &symbol, &e), GRADCOMP_ERR_NOTFOUND, "no such module");
	like(e.text, "bootstrap/nothing.so is not installed in ", "says where it was sought");
}

static void host(void)
{
	log_sink log = {GRADCOMP_LOG_ERROR, 0};
	gradcomp_host h;
	int dirty = 0;
	plugin_host(&h, &log);
	is_int(h.struct_size, sizeof h, "host: size");
	is_int(h.abi_version, GRADCOMP_ABI_VERSION, "host: version");
	ok(h.operators && h.operators->add, "host: operators");
	ok(h.operators_v1 == operators_v1() && h.operators_v1->add == h.operators->add, "host: operators of ABI 1");
	ok(h.operators_on_v1(GRADCOMP_HOST, &e) == h.operators_v1, "... of its memory");
	ok(!h.operators_on_v1(GRADCOMP_CUDA, &e), "... and none of a device");
	like(e.text, "plugins of ABI 1 and 2 have no operators on a device: build the plugin with the headers of ABI 3",
	     "... says so");
	unsigned char *m = h.alloc(1000);
	for (int i = 0; i < 1000; i++)
		dirty |= m[i];
	ok(m && !dirty && (uintptr_t)m % 64 == 0, "host: memory is zeroed and aligned");
	h.release(m);
	m = h.alloc(0);
	ok(m != NULL, "host: no bytes are not a failure");
	h.release(m);
	h.release(NULL);
	ok(!h.alloc(SIZE_MAX) && !h.alloc(SIZE_MAX - 64), "host: too much is NULL");
	is_int(h.fail(&e, GRADCOMP_ERR_RANGE, "%d", 7), GRADCOMP_ERR_RANGE, "host: fail");
	is_str(e.text, "7", "host: fail's text");
}

int main(void)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[300];
	config *c;
	umask(022);
	snprintf(fixtures, sizeof fixtures, "%s/tests/plugins", build ? build : ".");
	tmpdir_make("registry");
	snprintf(compressors, sizeof compressors, "%s/compressors", tmpdir);
	snprintf(path, sizeof path, "%s/empty.conf", tmpdir);
	FILE *f = fopen(path, "w");
	if (!f || fclose(f) || mkdir(compressors, 0755))
		return 2;
	setenv("GRADCOMP_CONF", path, 1);
	unsetenv("GRADCOMP");

	c = config_with(fixtures);
	good(c);
	descriptors(c);
	missing(c);
	damaged();
	listing(c);
	pairs(c);
	of_a_job(c);
	resolving(c);
	threads();
	modules(c);
	host();
	config_free(c);
	return done_testing();
}
