/* Copies that are disturbed: a source that changes, a caller who stops, a
 * producer that dies, damage in the cache, several at once. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "tests/support/stage_fixture.h"

struct script {
	gradcomp_stage_phase phase; /* when it begins ... */
	int times;                  /* ... the first `times` times */
	int (*act)(void);
	int seen; /* bits of the phases seen */
	gradcomp_stage_phase last;
	char notice[600];
};

static int play(void *ctx, const gradcomp_stage_progress *p)
{
	struct script *s = ctx;
	s->seen |= 1 << p->phase;
	if (p->notice)
		snprintf(s->notice, sizeof s->notice, "%s", p->notice);
	bool begins = p->phase != s->last;
	s->last = p->phase;
	return begins && p->phase == s->phase && s->times-- > 0 ? s->act() : 0;
}

static gradcomp_status staged(uint32_t flags, struct script *s)
{
	s->last = GRADCOMP_STAGE_NOTICE;
	return stage_with(flags, play, s);
}

static int append(void)
{
	int fd = open("src/b", O_WRONLY | O_APPEND);
	int bad = fd < 0 || write(fd, "+", 1) != 1;
	close(fd);
	return bad;
}

static int exchange(void)
{
	return unlink("src/b") < 0 || mkfifo("src/b", 0644) < 0;
}

static int appear(void)
{
	put("src/new", "new");
	return 0;
}

static int stop(void)
{
	return 1;
}

static int die(void)
{
	raise(SIGKILL);
	return 0;
}

static void fresh(void)
{
	if (system("rm -rf cache/* src; mkdir -p src/d; for i in a b c d/e; do echo $i >src/$i; done"))
		must(-1, "source");
}

static void changes(void)
{
	fresh();
	struct script once = {.phase = GRADCOMP_STAGE_COPY, .times = 1, .act = append};
	is_int(staged(0, &once), 0, "a file written to once");
	like(once.notice,
	     "the source changed while it was staged: b was written to; if it is none of the data, exclude=b leaves it "
	     "out; starting again",
	     "is said");
	is_str(copied("b"), "b\n+", "and the copy is the new one");
	is_int(in_cache(".tmp"), 0, "nothing stays of the first try");

	fresh();
	struct script always = {.phase = GRADCOMP_STAGE_COPY, .times = 99, .act = append};
	is_int(staged(0, &always), GRADCOMP_ERR_STATE, "a file written to all the time");
	like(why.text, "b was written to", "is named");
	is_int(99 - always.times, 3, "after three tries");
	is_int(in_cache(""), 0, "nothing is in the cache");

	fresh();
	struct script fifo = {.phase = GRADCOMP_STAGE_COPY, .times = 1, .act = exchange};
	is_int(staged(0, &fifo), GRADCOMP_ERR_UNSUPPORTED, "a FIFO in place of a file does not hang");
	like(fifo.notice, "b was removed or replaced", "the change is seen");
	like(why.text, "b is a FIFO", "and then the FIFO");
	is_int(in_cache(""), 0, "nothing is in the cache");

	fresh();
	struct script more = {.phase = GRADCOMP_STAGE_COPY, .times = 1, .act = appear};
	is_int(staged(0, &more), 0, "a file that appears");
	like(more.notice, "names came or went in", "is seen");
	is_str(copied("new"), "new", "and staged");
}

static void stops(void)
{
	static const gradcomp_stage_phase phases[] = {GRADCOMP_STAGE_LIST, GRADCOMP_STAGE_COPY, GRADCOMP_STAGE_CHECK,
	                                              GRADCOMP_STAGE_SYNC};
	fresh();
	for (int i = 0; i < 4; i++) {
		struct script s = {.phase = phases[i], .times = 1, .act = stop};
		is_int(staged(GRADCOMP_STAGE_VERIFY, &s), GRADCOMP_ERR_STATE, "stopped in phase %d", phases[i]);
		is_int(in_cache(""), 0, "nothing stays");
	}
}

/* Killed when a phase begins, in a process of its own. */
static void kill_in(gradcomp_stage_phase phase)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		struct script s = {.phase = phase, .times = 1, .act = die};
		_exit(staged(GRADCOMP_STAGE_VERIFY, &s) ? 1 : 0);
	}
	ok(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "killed in phase %d", phase);
}

static void kills(void)
{
	fresh();
	kill_in(GRADCOMP_STAGE_LIST);
	kill_in(GRADCOMP_STAGE_COPY);
	is_int(in_cache(".tmp"), 1, "half a copy stays");
	kill_in(GRADCOMP_STAGE_CHECK);
	kill_in(GRADCOMP_STAGE_SYNC);
	is_int(in_cache(".tmp"), 1, "a copy that was never published stays");
	char torn[300];
	snprintf(torn, sizeof torn, "cd cache/%u/*.tmp && printf '3 0123' >>journal && echo x >data/c", geteuid());
	must(system(torn) ? -1 : 0, torn);
	is_int(stage(), 0, "the next one goes on");
	is_int(got.resumed, 2 + 2 + 4, "with the files that are whole");
	ok(!strcmp(copied("c"), "c\n") && !strcmp(copied("d/e"), "d/e\n"), "and copies the rest");
	is_int(in_cache(".tmp") + in_cache(".lock"), 0, "and leaves nothing else");
	is_int(stage_with(GRADCOMP_STAGE_VERIFY, NULL, NULL), 0, "the copy verifies");
	ok(got.cached, "as it is");

	put("src/a", "another");
	kill_in(GRADCOMP_STAGE_SYNC);
	put("src/a", "and another");
	is_int(stage(), 0, "staging something else");
	is_int(in_cache(".tmp"), 1, "keeps what a dead producer copied, to be gone on with");
	is_int(in_cache(".lock"), 0, "but not its lock");
}

static void damaged(const char *how, uint32_t flags, const char *text)
{
	char command[8192];
	char key[65];
	struct script s = {.times = 0, .phase = GRADCOMP_STAGE_NOTICE, .act = stop};
	memcpy(key, got.key, sizeof key);
	snprintf(command, sizeof command, "cd '%s' && %s", got.path, how);
	must(system(command) ? -1 : 0, command);
	is_int(staged(flags, &s), 0, "%s", how);
	like(s.notice, text, "the damage is said");
	ok(!got.cached && !strcmp(got.key, key), "and the copy replaced");
	is_int(in_cache(".tmp"), 0, "the old one is gone");
	struct script again = s;
	again.notice[0] = 0;
	is_int(staged(GRADCOMP_STAGE_VERIFY, &again), 0, "the new one verifies");
	ok(got.cached && !again.notice[0], "and is used");
}

static void damage(void)
{
	fresh();
	is_int(stage(), 0, "staged");
	damaged("rm d/e", 0, "d/e is missing or was altered");
	damaged("echo longer >b", 0, "b is missing or was altered");
	damaged("rm -r d && ln -s /etc d", 0, "d is missing or was altered");
	damaged("rm ../manifest", 0, "its manifest cannot be opened");
	damaged("rm -r ../data", 0, "its data cannot be opened");
	damaged("touch -r c ref && printf Z | dd of=c bs=1 conv=notrunc 2>/dev/null && touch -r ref c && rm ref",
	        GRADCOMP_STAGE_VERIFY, "c does not have its checksum");
}

/* Any byte of a manifest changed, or any part of it missing, is noticed. */
static void manifest(void)
{
	char path[8192], text[4096];
	int missed = 0;
	fresh();
	is_int(stage(), 0, "staged");
	snprintf(path, sizeof path, "%s/../manifest", got.path);
	int fd = open(path, O_RDWR);
	ssize_t n = read(fd, text, sizeof text);
	ok(n > 300 && n < (ssize_t)sizeof text, "a manifest of %zd bytes", n);
	for (ssize_t i = 0; i < n; i++) {
		char c = (char)(text[i] ^ (1 << i % 8));
		must((int)pwrite(fd, &c, 1, i), "write");
		struct script s = {.times = 0, .phase = GRADCOMP_STAGE_NOTICE, .act = stop};
		missed += staged(GRADCOMP_STAGE_DRY_RUN, &s) != 0 || got.cached || !strstr(s.notice, "damaged");
		must((int)pwrite(fd, text + i, 1, i), "write");
	}
	is_int(missed, 0, "any byte changed");
	for (ssize_t i = n; i-- > 0;) {
		must(ftruncate(fd, i), "truncate");
		missed += stage_with(GRADCOMP_STAGE_DRY_RUN, NULL, NULL) != 0 || got.cached;
	}
	is_int(missed, 0, "any part missing");
	must((int)pwrite(fd, text, (size_t)n, 0), "write");
	is_int(stage_with(GRADCOMP_STAGE_DRY_RUN, NULL, NULL), 0, "put right");
	ok(got.cached, "it is a copy again");
	close(fd);
}

static pthread_barrier_t gate;
static atomic_int copying, waited;

static int meet(void *ctx, const gradcomp_stage_progress *p)
{
	static _Thread_local int counted;
	(void)ctx;
	if (p->phase == GRADCOMP_STAGE_COPY && !atomic_fetch_add(&copying, 1)) {
		/* The one who copies goes on when the others wait for it. */
		for (int i = 0; i < 1000 && atomic_load(&waited) < 3; i++)
			usleep(10000);
	}
	if (p->phase == GRADCOMP_STAGE_WAIT && p->pid == getpid() && !counted++)
		atomic_fetch_add(&waited, 1);
	return 0;
}

static void *one_of_four(void *arg)
{
	gradcomp_stage_options o = {.struct_size = sizeof o, .source = "src", .progress = meet};
	gradcomp_stage_result *r = arg;
	r->struct_size = sizeof *r;
	pthread_barrier_wait(&gate);
	return gradcomp_stage(&o, r, NULL) ? NULL : r;
}

static void together(void)
{
	static gradcomp_stage_result r[4];
	pthread_t t[4];
	int good = 0, cached = 0, same = 0;
	fresh();
	pthread_barrier_init(&gate, NULL, 4);
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, one_of_four, &r[i]);
	for (int i = 0; i < 4; i++) {
		void *result;
		pthread_join(t[i], &result);
		good += result != NULL;
		cached += (int)r[i].cached;
		same += !strcmp(r[i].path, r[0].path);
	}
	pthread_barrier_destroy(&gate);
	ok(good == 4 && same == 4, "four at once: %d have the same copy", same);
	is_int(cached, 3, "one copied");
	is_int(waited, 3, "and three waited for its process");
	is_int(in_cache(".lock"), 0, "no lock stays");
}

int main(void)
{
	bench_begin();
	changes();
	stops();
	kills();
	damage();
	manifest();
	together();
	return done_testing();
}
