/* Death and failure at every step of making a copy: each system call that changes the
 * cache is, in its turn, the one at which the process is killed, or which fails.
 * Whatever happens, a published copy is whole, the next run succeeds, and after the one
 * that follows nothing is in the cache but what doc/dev/staging-internals.md says. */
#include <dirent.h>
#include <sys/mman.h>

#include "io/cache/manage.h"
#include "tests/support/stage_fixture.h"
#include "tests/support/syscall_trace.h"

static char cache[4096]; /* the path that the kernel has */
static char *said;       /* by the child that fails */

static int whole(void)
{
	return stage_with(GRADCOMP_STAGE_VERIFY | GRADCOMP_STAGE_DRY_RUN, NULL, NULL) == 0 && got.cached;
}

/* A walk starts from one of these. */
enum { FROM_NOTHING, FROM_DAMAGE, FROM_HALF, FROM_FULL, FROM_LEASED, STARTS };
static const char *const start_names[] = {"from nothing", "in place of a damaged copy", "from half a copy",
                                          "with an eviction", "for one who holds it"};
static int64_t holder; /* 0: nobody */

static gradcomp_status stage_another(const char *source)
{
	gradcomp_stage_options o = {.struct_size = sizeof o, .source = source};
	return gradcomp_stage(&o, &got, &why);
}

static int body(void *arg)
{
	(void)arg;
	gradcomp_stage_options o = {.struct_size = sizeof o, .source = "src", .hold_pid = holder, .holder = "the test"};
	gradcomp_status st = gradcomp_stage(&o, &got, &why);
	snprintf(said, sizeof why.text, "%s", st ? why.text : "");
	return st ? 1 : 0;
}

static void prepare(int start)
{
	char command[8192];
	must(system("rm -rf cache/*") ? -1 : 0, "cache");
	unsetenv("GRADCOMP_STAGE_CACHE_BYTES");
	holder = start == FROM_LEASED ? getpid() : 0;
	if (start == FROM_FULL) {
		must(stage_another("old"), "old copy");
		setenv("GRADCOMP_STAGE_CACHE_BYTES", "600K", 1);
	}
	if (start == FROM_DAMAGE) {
		must(stage(), "first copy");
		snprintf(command, sizeof command, "echo damage >'%s/a'", got.path);
		must(system(command) ? -1 : 0, command);
	}
	if (start == FROM_HALF) {
		steps t = {.below = cache, .fatal = 25};
		must(WIFSIGNALED(steps_run(&t, body, NULL)) ? 0 : -1, "half a copy");
	}
}

/* A name that the layout does not have, or "". */
static const char *stray(void)
{
	static const char *const inside[] = {"data", "manifest", "used", "size", "journal"};
	static char found[600];
	char area[64], path[400];
	snprintf(area, sizeof area, "cache/%u", geteuid());
	found[0] = 0;
	DIR *d = opendir(area);
	for (struct dirent *e; d && (e = readdir(d));) {
		if (e->d_name[0] == '.')
			continue;
		const char *suffix = e->d_name + strspn(e->d_name, "0123456789abcdef");
		if (suffix - e->d_name == 64 && !strcmp(suffix, ".lease"))
			continue;
		if (suffix - e->d_name != 64 || *suffix) {
			snprintf(found, sizeof found, "%s", e->d_name);
			continue;
		}
		snprintf(path, sizeof path, "%s/%s", area, e->d_name);
		DIR *copy = opendir(path);
		for (struct dirent *f; copy && (f = readdir(copy));) {
			/* The note of its size, also as it is written. */
			int known = f->d_name[0] == '.' || !strncmp(f->d_name, "size", 4);
			for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
				known |= !strcmp(f->d_name, inside[i]);
			if (!known)
				snprintf(found, sizeof found, "%.70s/%s", e->d_name, f->d_name);
		}
		if (copy)
			closedir(copy);
	}
	if (d)
		closedir(d);
	return found;
}

/* After death or failure: the next run, and then one of another dataset, which clears up
 * after the dead. NULL or what is wrong. */
static const char *recovers(bool was)
{
	if (stage())
		return why.text;
	if (got.cached != was)
		return "a copy came or went";
	if (strcmp(copied("a"), "one\n") || strcmp(copied("d/b"), "two\n") || !whole())
		return "the copy is wrong";
	if (stage_another("src2"))
		return why.text;
	return *stray() ? stray() : NULL;
}

static void kill_everywhere(int start)
{
	int n = 1, wrong = 0, published = 0;
	for (;; n++) {
		steps t = {.below = cache, .fatal = n};
		prepare(start);
		int status = steps_run(&t, body, NULL);
		if (!WIFSIGNALED(status)) {
			is_int(status, 0, "%s: and it succeeds when it lives", start_names[start]);
			break;
		}
		bool was = whole();
		published += was;
		const char *bad = recovers(was);
		if (!bad && start == FROM_FULL && in_cache("") - in_cache(".lease") != 2)
			bad = "what was to be evicted is still there";
		if (bad) {
			printf("# killed at call %d, %s %s %s: %s\n", n, t.last.call, t.last.path, t.last.other, bad);
			wrong++;
		}
	}
	tap_tried((unsigned long)n - 1, "deaths at a system call");
	ok(n > 20 && published > 1 && published < n / 2, "%s: killed at each of %d calls, %d times after publishing",
	   start_names[start], n - 1, published);
	is_int(wrong, 0, "%s: the next run has a whole copy, and nothing else stays", start_names[start]);
}

static char key[65];

static int take_key(void *ctx, const gradcomp_cache_entry *e)
{
	(void)ctx;
	if (e->kind == GRADCOMP_CACHE_PUBLISHED)
		snprintf(key, sizeof key, "%s", e->key);
	return 0;
}

static int do_pin(void *arg)
{
	(void)arg;
	return gradcomp_cache_pin(NULL, key, &why) || gradcomp_cache_unpin(NULL, key, &why);
}

static int do_lease(void *arg)
{
	(void)arg;
	return gradcomp_cache_lease_job(NULL, key, 7, "job 7", &why) || gradcomp_cache_gc(NULL, 7, NULL, NULL, &why);
}

static int do_collect(void *arg)
{
	(void)arg;
	return gradcomp_cache_gc(NULL, 0, NULL, NULL, &why) != 0;
}

static int do_evict(void *arg)
{
	(void)arg;
	return gradcomp_cache_evict(NULL, key, NULL, NULL, &why) != 0;
}

static int do_clear(void *arg)
{
	uint32_t kept;
	(void)arg;
	return gradcomp_cache_clear(NULL, NULL, NULL, &kept, &why) != 0;
}

static const struct care {
	const char *name;
	int (*body)(void *arg);
	int start, least; /* calls that change something */
} cares[] = {{"a pin", do_pin, FROM_NOTHING, 1},
             {"a job's lease", do_lease, FROM_NOTHING, 1},
             {"collecting what a dead process left", do_collect, FROM_HALF, 1},
             {"an eviction", do_evict, FROM_NOTHING, 5},
             {"clearing", do_clear, FROM_NOTHING, 5}};

/* The copy that was there is whole afterwards, or is not there. */
static void care_killed(const struct care *c)
{
	int n = 1, wrong = 0;
	for (;; n++) {
		steps t = {.below = cache, .fatal = n};
		prepare(c->start);
		if (c->start == FROM_NOTHING)
			must(stage(), "a copy");
		must(gradcomp_cache_each(NULL, take_key, NULL, &why), "its key");
		int status = steps_run(&t, c->body, NULL);
		if (!WIFSIGNALED(status)) {
			is_int(status, 0, "%s: and it succeeds when it lives", c->name);
			break;
		}
		const char *bad = gradcomp_cache_each(NULL, take_key, NULL, &why) ? why.text : NULL;
		/* A pin that was set keeps it; nobody does any more. */
		if (!bad && gradcomp_cache_gc(NULL, 7, NULL, NULL, &why))
			bad = why.text;
		if (!bad)
			bad = recovers(whole());
		if (bad) {
			printf("# killed at call %d, %s %s %s: %s\n", n, t.last.call, t.last.path, t.last.other, bad);
			wrong++;
		}
	}
	tap_tried((unsigned long)n - 1, "deaths at a system call");
	ok(n > c->least && !wrong, "%s: killed at each of %d calls, the copy is whole or not there", c->name, n - 1);
}

static void fail_everywhere(int failure, const char *words)
{
	int n = 1, wrong = 0, failed = 0;
	for (;; n++) {
		steps t = {.below = cache, .fatal = n, .failure = failure};
		prepare(FROM_NOTHING);
		int status = steps_run(&t, body, NULL);
		if (t.n < n)
			break;
		const char *bad = status && (!WIFEXITED(status) || WEXITSTATUS(status) != 1) ? "it crashed" : NULL;
		failed += status != 0;
		/* Before the source is listed nobody knows what it needs. */
		if (!bad && status && !strstr(said, words) && !strstr(said, strerror(failure)))
			bad = said;
		if (!bad && in_cache(".tmp") > 0 && strcmp(t.last.call, "unlink"))
			bad = "half a copy stays";
		if (!bad)
			bad = recovers(whole());
		if (bad) {
			printf("# %s at call %d, %s %s %s: %s\n", strerror(failure), n, t.last.call, t.last.path,
			       t.last.other, bad);
			wrong++;
		}
	}
	tap_tried((unsigned long)n - 1, "failures of a system call");
	ok(failed > 15, "%s at each of %d calls, %d of them fatal", strerror(failure), n - 1, failed);
	is_int(wrong, 0, "the reason is said, nothing half stays, and the next run has a whole copy");
}

int main(void)
{
	bench_begin_in("/dev/shm");
	must(system("mkdir -p src/d/e src2 && echo one >src/a && echo two >src/d/b && ln src/a src/d/c && ln -s "
	            "../a "
	            "src/d/l && echo three >src2/x && truncate -s 300000 src/h && echo hole >>src/h && "
	            "mkdir old && head -c 500000 /dev/urandom >old/x && head -c 200000 /dev/urandom >src/d/e/y")
	             ? -1
	             : 0,
	     "source");
	said = mmap(NULL, sizeof why.text, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(said == MAP_FAILED ? -1 : 0, "memory");
	must(realpath("cache", cache) ? 0 : -1, "cache");
	steps t = {.below = cache};
	if (steps_run(&t, body, NULL) < 0) {
		skip("needs the right to trace", "death and failure at every step: %s", strerror(errno));
		return done_testing();
	}
	for (int start = 0; start < STARTS; start++)
		kill_everywhere(start);
	for (size_t i = 0; i < sizeof cares / sizeof *cares; i++)
		care_killed(&cares[i]);
	if (STEPS_CAN_FAIL) {
		fail_everywhere(ENOSPC, "no space");
		fail_everywhere(EDQUOT, "your disk quota");
		fail_everywhere(EIO, "Input/output error");
	} else
		skip("only on x86-64", "failure at every step");
	return done_testing();
}
