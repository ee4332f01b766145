/* Secrets sealed by MUNGE, against a munged of this test's own that hangs up, has no room,
 * says nothing or answers well: it is asked again for a while, then the job is refused with the
 * reason, and never goes on with less. What was sealed for one job or purpose is refused for
 * another. */
#include "tests/support/tap.h"

#include "bootstrap/rendezvous_msg.h"
#include "config/config.h"
#include "security/job_secret.h"
#include "security/munge_seal.h"
#include "tests/support/pace.h"
#include "tests/support/tmpdir.h"
#include "base/clock.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE 60.0 /* s: more than any of this takes */

/* Messages of MUNGE 0.5: 4 bytes of magic, version 4, type, retry, 4 bytes of length. */
enum { HEAD = 11, ENCODE = 2, ENCODED = 3, DECODE = 4, DECODED = 5 };

static struct {
	char path[108];
	int fd;
	pthread_t thread;
	atomic_int hang_ups; /* connections to close at once */
	atomic_int mute;     /* connections to say nothing on, until the other end has gone */
	atomic_bool serves, quit;
	atomic_uint uid; /* it says that this user made what it opens */
} munged = {.fd = -1};

static uint32_t get32_be(const unsigned char *p)
{
	return __builtin_bswap32(get32(p));
}

static void put32_be(unsigned char *p, uint32_t v)
{
	put32(p, __builtin_bswap32(v));
}

static int take(int fd, unsigned char *p, size_t bytes)
{
	return recv(fd, p, bytes, MSG_WAITALL) == (ssize_t)bytes ? 0 : -1;
}

/* A credential is what was sealed, in hexadecimal. */
static void serve(int fd)
{
	static const char digits[] = "0123456789abcdef";
	unsigned char head[HEAD], in[4096], out[4096] = {0};
	size_t n = 0, at;
	if (take(fd, head, HEAD) || get32_be(head + 7) > sizeof in || take(fd, in, get32_be(head + 7)))
		return;
	if (atomic_load(&munged.mute) > 0) {
		atomic_fetch_sub(&munged.mute, 1);
		(void)!read(fd, out, 1);
		return;
	}
	n = HEAD + 2; /* no error, no text of one */
	if (head[5] == ENCODE) {
		at = 4 + in[3] + 12; /* behind the realm, the time to live and who may open it */
		uint32_t bytes = get32_be(in + at);

		put32_be(out + n, 2 * bytes + 8);
		n += 4;
		n += (size_t)sprintf((char *)out + n, "MUNGE:");
		for (uint32_t i = 0; i < bytes; i++) {
			out[n++] = (unsigned char)digits[in[at + 4 + i] >> 4];
			out[n++] = (unsigned char)digits[in[at + 4 + i] & 15];
		}
		out[n++] = ':';
		out[n++] = 0;
	} else {
		uint32_t bytes = (get32_be(in) - 8) / 2;

		n += 4 + 4; /* cipher, mac, zip, no realm; time to live */
		out[n++] = 4;
		n += 4 + 4 + 4; /* address, times */
		put32_be(out + n, atomic_load(&munged.uid));
		n += 16;
		put32_be(out + n, bytes);
		n += 4;
		for (uint32_t i = 0; i < bytes; i++) {
			unsigned char c[3] = {in[4 + 6 + 2 * i], in[4 + 6 + 2 * i + 1], 0};

			out[n++] = (unsigned char)strtoul((char *)c, NULL, 16);
		}
	}
	memcpy(out, head, HEAD);
	out[5] = head[5] == ENCODE ? ENCODED : DECODED;
	put32_be(out + 7, (uint32_t)(n - HEAD));
	(void)!send(fd, out, n, MSG_NOSIGNAL);
}

static void *munged_main(void *none)
{
	while (!atomic_load(&munged.quit)) {
		struct pollfd p = {munged.fd, POLLIN, 0};

		if (!atomic_load(&munged.serves) || poll(&p, 1, 20) <= 0) {
			poll(NULL, 0, 1);
			continue;
		}
		int fd = accept(munged.fd, NULL, NULL);

		if (fd < 0)
			continue;
		if (atomic_load(&munged.hang_ups) > 0)
			atomic_fetch_sub(&munged.hang_ups, 1);
		else
			serve(fd);
		close(fd);
	}
	return none;
}

static int munged_begin(void)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	snprintf(munged.path, sizeof munged.path, "%s/munged", tmpdir);
	memcpy(un.sun_path, munged.path, sizeof un.sun_path);
	munged.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	atomic_store(&munged.uid, (unsigned)geteuid());
	atomic_store(&munged.serves, true);
	return bind(munged.fd, (struct sockaddr *)&un, sizeof un) || listen(munged.fd, 0) ||
	       pthread_create(&munged.thread, NULL, munged_main, NULL);
}

static void munged_end(void)
{
	atomic_store(&munged.quit, true);
	pthread_join(munged.thread, NULL);
	close(munged.fd);
}

/* Connects until there is no room for one more; how often. */
static int fill(int *fd, int most)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int n = 0;
	memcpy(un.sun_path, munged.path, sizeof un.sun_path);
	while (n < most) {
		fd[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (connect(fd[n], (struct sockaddr *)&un, sizeof un)) {
			close(fd[n]);
			break;
		}
		n++;
	}
	return n;
}

/* The functions below ask something of it. */

static gradcomp_error err;
static log_sink sink = {GRADCOMP_LOG_ERROR, -1};

static munge_request for_purpose(const char *purpose, double patience)
{
	return (munge_request){.socket = munged.path, .purpose = purpose, .patience = patience, .log = &sink};
}

static void again(void)
{
	unsigned char secret[SECRET_BYTES] = "thirty-two bytes, or a few less", got[SECRET_BYTES];
	char text[MUNGE_TEXT];
	munge_request q = for_purpose("secret of job 17.0", PATIENCE);
	is_int(munge_seal(&q, secret, text, &err), 0, "munged serves: sealed");
	is_int(munge_open(&q, text, got, &err), 0, "and opened");
	ok(!memcmp(got, secret, SECRET_BYTES), "as it was");

	/* More often than libmunge itself tries. */
	atomic_store(&munged.hang_ups, 12);
	ok(!munge_seal(&q, secret, text, &err), "munged hangs up 12 times: sealed all the same");
	is_int(atomic_load(&munged.hang_ups), 0, "after 12 times");
	atomic_store(&munged.hang_ups, 12);
	ok(!munge_open(&q, text, got, &err) && !memcmp(got, secret, SECRET_BYTES), "and opened");

	atomic_store(&munged.mute, 1);
	ok(!munge_seal(&q, secret, text, &err), "munged lets a caller wait for nothing: sealed all the same");
}

static int others[64], nothers; /* connections of somebody else's */

static void *let_go(void *pipe_end)
{
	char said[300] = "";
	int *fd = pipe_end;
	/* Only when the caller has been turned away is there room. */
	while (!strstr(said, "munged does not serve: ") && read(fd[0], said, sizeof said - 1) > 0)
		;
	while (nothers > 0)
		close(others[--nothers]);
	atomic_store(&munged.serves, true);
	return strstr(said, "trying again for") ? pipe_end : NULL;
}

static void flooded(void)
{
	unsigned char secret[SECRET_BYTES] = {1}, got[SECRET_BYTES];
	char text[MUNGE_TEXT];
	munge_request q = for_purpose("secret of job 17.0", PATIENCE);
	int said[2], kept = dup(STDERR_FILENO);
	pthread_t thread;
	void *told;
	atomic_store(&munged.serves, false);
	nothers = fill(others, 64);
	ok(nothers > 0 && nothers < 64, "the queue is full after %d connections", nothers);
	sink.level = GRADCOMP_LOG_WARN;
	if (pipe(said) || dup2(said[1], STDERR_FILENO) < 0 || pthread_create(&thread, NULL, let_go, said)) {
		ok(0, "a pipe and a thread");
		return;
	}
	gradcomp_status st = munge_seal(&q, secret, text, &err);
	dup2(kept, STDERR_FILENO);
	close(said[1]);
	pthread_join(thread, &told);
	ok(told != NULL, "it says that munged does not serve, and how long it goes on");
	sink.level = GRADCOMP_LOG_ERROR;
	is_int(st, 0, "turned away at first: sealed when there is room");
	ok(!munge_open(&q, text, got, &err) && !memcmp(got, secret, SECRET_BYTES), "and opened");
	close(said[0]);
	close(kept);
}

static gradcomp_status offer(const char *setting, double patience, char text[JOB_SECRET_TEXT])
{
	return job_secret_offer(setting, 0, "slurm.pmix.17.0", patience, &sink, text, &err);
}

static void never_less(void)
{
	char text[JOB_SECRET_TEXT] = "", way[140];
	unsigned char key[2][SECRET_BYTES];
	setenv("PMIX_NAMESPACE", "slurm.pmix.17.0", 1);
	setenv("SLURM_JOB_ID", "17", 1);
	snprintf(way, sizeof way, "auto:%s", munged.path);
	atomic_store(&munged.hang_ups, 12);
	ok(!offer(way, PATIENCE, text), "auto in a step, munged hangs up 12 times: goes well");
	like(text, "munge ", "and is sealed");
	for (int i = 0; i < 2; i++)
		ok(!job_secret_take(way, text, "munge", "slurm.pmix.17.0", PATIENCE, &sink, key[i], &err),
		   "a rank takes it");
	ok(!memcmp(key[0], key[1], SECRET_BYTES), "all have one key");

	atomic_store(&munged.hang_ups, 1 << 20);
	double began = clock_now();
	ok(offer(way, 0.2, text) < 0, "munged never serves: refused");
	ok(in_time(clock_now() - began, 3), "after the patience: %.1f s", clock_now() - began);
	like(err.text, "munge cannot seal the job's secret: ", "it says what cannot be done");
	like(err.text, "security.secret=auto wants munge in a Slurm step", "why it is wanted");
	ok(job_secret_take(way, "munge 0 - x", "munge", NULL, 0.1, &sink, key[0], &err) < 0, "nor is it opened");
	atomic_store(&munged.hang_ups, 0);
	ok(offer("auto:/nowhere/munged", 0.1, text) < 0, "no munged: refused");
	like(err.text, "/nowhere/munged", "its socket is named");
	ok(offer("munge:/nowhere/munged", 0, text) < 0, "munge by name: refused");
	ok(!strstr(err.text, "auto"), "and nothing is said of auto");
	ok(!offer("pmix", 0, text) && !strncmp(text, "pmix ", 5), "pmix where it was asked for");
	ok(!job_secret_offer(way, 0, NULL, 0, &sink, text, &err) && !strncmp(text, "pmix ", 5),
	   "auto with a framework's store: as it is");
}

static void only_for(void)
{
	unsigned char secret[SECRET_BYTES] = {7}, got[SECRET_BYTES], key[SECRET_BYTES];
	char text[MUNGE_TEXT], way[140], mine[JOB_SECRET_TEXT], theirs[JOB_SECRET_TEXT], mixed[JOB_SECRET_TEXT];
	munge_request q = for_purpose("secret of job 17.0", 0), other = for_purpose("secret of job 18.0", 0);
	is_int(munge_seal(&q, secret, text, &err), 0, "sealed for one job");
	is_int(munge_open(&other, text, got, &err), GRADCOMP_ERR_AUTH, "another job does not take it");
	like(err.text, "is the secret of job 17.0; this must be the secret of job 18.0", "and both are named");
	atomic_store(&munged.uid, (unsigned)geteuid() + 1);
	is_int(munge_open(&q, text, got, &err), GRADCOMP_ERR_AUTH, "of another user");
	atomic_store(&munged.uid, (unsigned)geteuid());
	is_int(munge_open(&q, "MUNGE:0011223344:", got, &err), GRADCOMP_ERR_AUTH, "what has no purpose");
	like(err.text, "is no secret of gradcomp", "is called so");
	is_int(munge_open(&q, "MUNGE:00:", got, &err), GRADCOMP_ERR_AUTH, "what has nothing else");

	snprintf(way, sizeof way, "munge:%s", munged.path);
	ok(!offer(way, 0, mine), "a record of job 17");
	setenv("PMIX_NAMESPACE", "slurm.pmix.18.0", 1);
	setenv("SLURM_JOB_ID", "18", 1);
	ok(!offer(way, 0, theirs), "and one of job 18");
	snprintf(mixed, sizeof mixed, "%.*s%s", (int)(strrchr(theirs, ' ') + 1 - theirs), theirs,
	         strrchr(mine, ' ') + 1);
	is_int(job_secret_take(way, mixed, "munge", "slurm.pmix.18.0", 0, &sink, key, &err), GRADCOMP_ERR_AUTH,
	       "a credential of job 17 in a record of job 18");
	like(err.text, "is the secret of job slurm.pmix.17.0, run ", "is named");
	is_int(job_secret_take(way, mine, "munge", NULL, 0, &sink, key, &err), GRADCOMP_ERR_MISMATCH,
	       "the whole record of job 17, where no PMIx tells the jobs apart");
	like(err.text, "this rank is of job slurm.pmix.18.0", "is named, too");
	ok(!offer(way, 0, mine), "another run of job 18");
	snprintf(mixed, sizeof mixed, "%.*s%s", (int)(strrchr(theirs, ' ') + 1 - theirs), theirs,
	         strrchr(mine, ' ') + 1);
	is_int(job_secret_take(way, mixed, "munge", "slurm.pmix.18.0", 0, &sink, key, &err), GRADCOMP_ERR_AUTH,
	       "a credential of another run of the job");
}

static void tokens(void)
{
	unsigned char token[SECRET_BYTES] = {9}, got[SECRET_BYTES];
	char text[RENDEZVOUS_TOKEN_TEXT], record[JOB_SECRET_TEXT], stolen[RENDEZVOUS_TOKEN_TEXT], set[160];
	const char *const settings[] = {set, NULL}, *const plain[] = {"security.secret=pmix", NULL};
	config *c = NULL, *p = NULL;
	snprintf(set, sizeof set, "security.secret=auto:%s", munged.path);
	if (config_load(settings, &c, &err) || config_load(plain, &p, &err)) {
		ok(0, "settings: %s", err.text);
		return;
	}
	ok(!rendezvous_token_write(c, token, text, &err) && !strncmp(text, "munge=", 6),
	   "a token in a job of Slurm is sealed");
	ok(!rendezvous_token_read(c, text, 0, got, &err) && !memcmp(got, token, SECRET_BYTES), "and opened");
	setenv("SLURM_JOB_ID", "19", 1);
	is_int(rendezvous_token_read(c, text, 0, got, &err), GRADCOMP_ERR_AUTH, "not in another job");
	like(err.text, "is the rendezvous token of job 18; this must be the rendezvous token of job 19",
	     "which is said");
	ok(!offer(config_str(c, SET_SECURITY_SECRET), 0, record), "a job's secret");
	snprintf(stolen, sizeof stolen, "munge=%s", strrchr(record, ' ') + 1);
	is_int(rendezvous_token_read(c, stolen, 0, got, &err), GRADCOMP_ERR_AUTH, "is no token");
	ok(!rendezvous_token_write(p, token, text, &err) && !strncmp(text, "plain=", 6), "pmix: as it is");
	is_int(rendezvous_token_read(c, text, 0, got, &err), GRADCOMP_ERR_AUTH,
	       "which a node that wants munge does not take");
	like(err.text, "is not sealed by munge", "and says so");
	unsetenv("SLURM_JOB_ID");
	ok(!rendezvous_token_write(c, token, text, &err) && !strncmp(text, "plain=", 6),
	   "auto without Slurm: as it is");
	ok(!rendezvous_token_read(c, text, 0, got, &err), "and taken");
	config_free(c);
	config_free(p);
}

int main(void)
{
	if (!munge_built()) {
		skip("built without munge", "secrets sealed by munge");
		return done_testing();
	}
	tmpdir_make("munge");
	if (munged_begin()) {
		ok(0, "a munged of our own");
		return done_testing();
	}
	again();
	flooded();
	never_less();
	only_for();
	tokens();
	munged_end();
	return done_testing();
}
