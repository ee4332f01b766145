/* Power loss: what the disk has not been told to keep may be lost, in any order. So
 * when the name of a copy appears, nothing below it may be waiting any more, and when
 * staging returns, neither may the name. */
#include "tests/support/stage_fixture.h"
#include "tests/support/syscall_trace.h"

static char cache[4096];

/* Remembers what was changed and not brought to the disk since: the inode of a path, or the path as a name in its
 * folder. */
typedef struct waiting {
	bool name;
	char path[400];
} waiting;

static waiting list[400];
static int n, published, unsafe, manifests, late, unseen;

static void changed(const char *path, bool name)
{
	for (int i = 0; i < n; i++)
		if (list[i].name == name && !strcmp(list[i].path, path))
			return;
	must(n < (int)(sizeof list / sizeof *list) ? 0 : -1, "more paths than the test has room for");
	list[n].name = name;
	snprintf(list[n++].path, sizeof list[0].path, "%s", path);
}

/* fsync() of a file keeps its data, and of a folder its names. NULL: everything. */
static void kept(const char *path)
{
	for (int i = n; i-- > 0;) {
		const char *p = list[i].path;
		size_t folder = (size_t)(strrchr(p, '/') - p);
		if (!path || (list[i].name ? strlen(path) == folder && !strncmp(p, path, folder) : !strcmp(p, path)))
			list[i] = list[--n];
	}
}

/* Nobody misses these: a torn journal is checked when it is used, and a lock, a lease or
 * what is being removed is of no use after a restart. */
static bool may_wait(const char *path)
{
	return strstr(path, "/journal") || strstr(path, "/used") || strstr(path, ".lock") || strstr(path, ".lease");
}

static int waits_below(const char *folder)
{
	int found = 0;
	size_t bytes = strlen(folder);
	for (int i = 0; i < n; i++) {
		const char *p = list[i].path;
		if (strncmp(p, folder, bytes) || (p[bytes] && p[bytes] != '/') || may_wait(p) ||
		    (list[i].name && !p[bytes]))
			continue;
		printf("# not on the disk: %s %s\n", list[i].name ? "the name" : "the content of", p);
		found++;
	}
	return found;
}

static bool is_key(const char *path)
{
	const char *base = strrchr(path, '/');
	return base && strspn(base + 1, "0123456789abcdef") == 64 && !base[65];
}

static void saw(void *ctx, const step *s)
{
	const char *base = strrchr(s->path, '/');
	(void)ctx;
	if (!strcmp(s->call, "fsync"))
		kept(s->path);
	else if (!strcmp(s->call, "syncfs"))
		kept(NULL);
	else if (!strcmp(s->call, "rename")) {
		if (is_key(s->other)) {
			published++;
			unsafe += waits_below(s->path);
		}
		changed(s->path, true);
		changed(s->other, true);
	} else if (!strcmp(s->call, "link"))
		changed(s->other, true);
	else if (!strcmp(s->call, "unlink") || !strcmp(s->call, "symlink"))
		changed(s->path, true);
	else if (!strcmp(s->call, "open") || !strcmp(s->call, "mkdir")) {
		changed(s->path, true);
		changed(s->path, false);
	} else if (!strcmp(s->call, "io_uring"))
		unseen++;
	else if (strcmp(s->call, "lock")) {
		manifests += base && !strcmp(base, "/manifest");
		late += manifests && !published && strstr(s->path, "/data");
		changed(s->path, false);
	}
}

static int body(void *arg)
{
	(void)arg;
	return stage() ? 1 : 0;
}

static void order(const char *what)
{
	steps t = {.below = cache, .saw = saw};
	char area[4200];
	n = published = unsafe = manifests = late = unseen = 0;
	int status = steps_run(&t, body, NULL);
	is_int(status, 0, "%s: staged in %d calls", what, t.n);
	/* One that finds another copy there is tried again as an exchange. */
	ok(published == 1 || published == 2, "%s: a rename publishes it", what);
	is_int(unsafe, 0, "%s: and all below it is on the disk then", what);
	ok(manifests > 0, "%s: there is a manifest", what);
	is_int(late, 0, "%s: which is written after all data", what);
	is_int(unseen, 0, "%s: this test sees all calls", what);
	/* All that waits now is of the removal of the old copy. */
	snprintf(area, sizeof area, "%s/%u", cache, geteuid());
	for (int i = n; i-- > 0;)
		if (strstr(list[i].path, ".tmp"))
			list[i] = list[--n];
	is_int(waits_below(area), 0, "%s: nothing waits in the end", what);
}

int main(void)
{
	char command[8300];
	bench_begin();
	must(system("mkdir -p src/d/e/f && echo one >src/a && echo two >src/d/b && ln src/a src/d/c && ln -s ../a "
	            "src/d/l "
	            "&& head -c 5000000 /dev/urandom >src/d/e/large && truncate -s 300000 src/h && echo hole "
	            ">>src/h")
	             ? -1
	             : 0,
	     "source");
	must(realpath("cache", cache) ? 0 : -1, "cache");
	steps t = {.below = cache, .fatal = 1};
	if (steps_run(&t, body, NULL) < 0) {
		skip("needs the right to trace", "the order of writing: %s", strerror(errno));
		return done_testing();
	}
	order("a new copy");
	must(stage(), "for its path");
	snprintf(command, sizeof command, "echo damage >'%s/a'", got.path);
	must(system(command) ? -1 : 0, command);
	order("a copy in place of a damaged one");
	must(system("rm -rf cache/*") ? -1 : 0, "cache");
	t.fatal = 40;
	must(WIFSIGNALED(steps_run(&t, body, NULL)) ? 0 : -1, "half a copy");
	order("a copy that was half there");
	return done_testing();
}
