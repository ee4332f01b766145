/* An NFSv4 server that answers what was not asked: every result of a compound has to be of
 * the operation that was asked for, in its place, and no client writes where it has no
 * buffer for another. */
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/support/stage_fixture.h"

enum { GETATTR = 9, GETFH = 10, LOOKUP = 15, PUTROOTFH = 24, READ = 25, READDIR = 26, READLINK = 27 };
enum { OK = 0, NOENT = 2, IO = 5, STALE = 70 };

typedef struct bytes {
	unsigned char at[4096];
	size_t n;
} bytes;

static void word(bytes *b, uint32_t v)
{
	v = htonl(v);
	memcpy(b->at + b->n, &v, 4);
	b->n += 4;
}

static void text(bytes *b, const char *s)
{
	size_t n = strlen(s);
	word(b, (uint32_t)n);
	memset(b->at + b->n, 0, n + 3);
	memcpy(b->at + b->n, s, n);
	b->n += (n + 3) / 4 * 4;
}

/* Writes what a result says behind its operation, and more than it may need. */
static void result(bytes *b, uint32_t op, uint32_t status)
{
	word(b, op);
	word(b, status);
	if (status)
		return;
	switch (op) {
	case PUTROOTFH:
	case LOOKUP:
		break;
	case GETFH:
		text(b, "handle");
		break;
	case GETATTR: /* a directory */
		word(b, 1);
		word(b, 1 << 1 | 1 << 4);
		word(b, 12);
		word(b, 2);
		word(b, 0);
		word(b, 4096);
		break;
	case READ:
		word(b, 1);
		text(b, "what nobody has asked for");
		break;
	case READLINK:
		text(b, "/elsewhere/and/long/enough/to/be/seen");
		break;
	case READDIR:
		for (int i = 0; i < 2; i++)
			word(b, 0);
		word(b, 1);
		word(b, 0);
		word(b, 1);
		text(b, "name");
		word(b, 0);
		word(b, 0);
		word(b, 0);
		word(b, 1);
		break;
	default: /* a result of any operation: zeroes, as many as there may be */
		memset(b->at + b->n, 0, 256);
		b->n += 256;
	}
}

typedef struct answer {
	const char *name;
	uint32_t status;
	struct {
		uint32_t op, status;
	} results[8];
	const char *why;
} answer;

/* To PUTROOTFH, LOOKUP, GETFH, GETATTR. */
static const answer answers[] = {
	{"a failure that a server may have", NOENT, {{PUTROOTFH, OK}, {LOOKUP, NOENT}}, "No such file"},
	{"a failure without results", STALE, {{0, 0}}, "does not give"},
	{"READLINK in answer to GETFH", OK, {{PUTROOTFH, OK}, {LOOKUP, OK}, {READLINK, OK}, {GETATTR, OK}}, NULL},
	{"READDIR in answer to GETFH", OK, {{PUTROOTFH, OK}, {LOOKUP, OK}, {READDIR, OK}, {GETATTR, OK}}, NULL},
	{"READ in answer to GETFH", OK, {{PUTROOTFH, OK}, {LOOKUP, OK}, {READ, OK}, {GETATTR, OK}}, NULL},
	{"READLINK behind all", OK, {{PUTROOTFH, OK}, {LOOKUP, OK}, {GETFH, OK}, {GETATTR, OK}, {READLINK, OK}}, NULL},
	{"READLINK before all", OK, {{READLINK, OK}, {PUTROOTFH, OK}, {LOOKUP, OK}, {GETFH, OK}, {GETATTR, OK}}, NULL},
	{"READLINK before a failure", NOENT, {{READLINK, OK}, {LOOKUP, NOENT}}, NULL},
	{"READDIR and a failure of it all", NOENT, {{PUTROOTFH, OK}, {READDIR, OK}, {GETFH, NOENT}}, NULL},
	{"fewer results than were asked for", OK, {{PUTROOTFH, OK}, {LOOKUP, OK}}, NULL},
	{"no result at all", OK, {{0, 0}}, NULL},
	{"another order", OK, {{PUTROOTFH, OK}, {LOOKUP, OK}, {GETATTR, OK}, {GETFH, OK}}, NULL},
	{"GETFH failed and all went well", OK, {{PUTROOTFH, OK}, {LOOKUP, OK}, {GETFH, IO}, {GETATTR, OK}}, NULL},
	{"all failed and each went well", IO, {{PUTROOTFH, OK}, {LOOKUP, OK}, {GETFH, OK}, {GETATTR, OK}}, NULL},
	{"one failed and another failure is told", STALE, {{PUTROOTFH, OK}, {LOOKUP, NOENT}}, NULL},
};

static answer now;
static pthread_mutex_t now_lock = PTHREAD_MUTEX_INITIALIZER;
static int listener;

static void answers_now(const answer *a)
{
	pthread_mutex_lock(&now_lock);
	now = *a;
	pthread_mutex_unlock(&now_lock);
}

static bool whole(int fd, void *at, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t got_now = read(fd, (char *)at + done, n - done);
		if (got_now <= 0)
			return false;
		done += (size_t)got_now;
	}
	return true;
}

static void reply(int fd, const unsigned char *call, uint32_t procedure)
{
	bytes b = {.n = 4};
	uint32_t n = 0;
	memcpy(b.at + b.n, call, 4);
	b.n += 4;
	word(&b, 1);
	for (int i = 0; i < 4; i++)
		word(&b, 0);
	if (procedure) {
		pthread_mutex_lock(&now_lock);
		while (n < 8 && now.results[n].op)
			n++;
		word(&b, now.status);
		text(&b, "");
		word(&b, n);
		for (uint32_t i = 0; i < n; i++)
			result(&b, now.results[i].op, now.results[i].status);
		pthread_mutex_unlock(&now_lock);
	}
	size_t end = b.n;
	b.n = 0;
	word(&b, 0x80000000u | (uint32_t)(end - 4));
	(void)!write(fd, b.at, end);
}

static void *serve(void *arg)
{
	(void)arg;
	for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd)) {
		unsigned char call[8192];
		uint32_t head, procedure;
		while (whole(fd, &head, 4) && (head = ntohl(head) & 0x7fffffff) >= 24 && head <= sizeof call &&
		       whole(fd, call, head)) {
			memcpy(&procedure, call + 20, 4);
			reply(fd, call, ntohl(procedure));
		}
	}
	return NULL;
}

/* How a process of its own ends, and what it says. */
static int stage_liar(const char *url, char out[512])
{
	int ends[2], status = 0;
	must(pipe(ends), "pipe");
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		gradcomp_stage_options o = {.struct_size = sizeof o, .source = url};
		close(listener);
		gradcomp_status failed = gradcomp_stage(&o, &got, &why);
		(void)!write(ends[1], why.text, strlen(why.text) + 1);
		_exit(-failed);
	}
	close(ends[1]);
	memset(out, 0, 512);
	(void)!read(ends[0], out, 511);
	close(ends[0]);
	must(child, "fork");
	must(waitpid(child, &status, 0), "waitpid");
	return status;
}

int main(void)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4200], url[100], out[512];
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof sa;
	pthread_t thread;
	int wrong = 0;
	snprintf(path, sizeof path, "%s/lib/gradcomp", build ? build : ".");
	bench_begin();
	setenv("GRADCOMP_PLUGIN_PATH", path, 1);
	setenv("GRADCOMP_STAGE_SOURCE_TIMEOUT", "20", 1);
	strcat(path, "/source/nfs.so");
	if (access(path, R_OK)) {
		skip("built without libnfs", "an NFS server that lies");
		return done_testing();
	}
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(listener < 0 || bind(listener, (struct sockaddr *)&sa, sizeof sa) || listen(listener, 16) ||
	                     getsockname(listener, (struct sockaddr *)&sa, &n)
	             ? -1
	             : 0,
	     "a socket");
	must(pthread_create(&thread, NULL, serve, NULL) ? -1 : 0, "a thread");
	snprintf(url, sizeof url, "nfs://127.0.0.1/export?version=4&nfsport=%u", ntohs(sa.sin_port));
	for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
		answers_now(&answers[i]);
		int status = stage_liar(url, out);
		ok(WIFEXITED(status) && WEXITSTATUS(status), "%s: staging fails, and ends (wait status %#x)", now.name,
		   (unsigned)status);
		like(out, now.why ? now.why : "127.0.0.1", "and says why");
	}
	for (uint32_t op = 3; op < 41; op++) {
		answers_now(&(answer){.results = {{PUTROOTFH, OK}, {LOOKUP, OK}, {op, OK}, {GETATTR, OK}}});
		int status = op == GETFH ? 256 : stage_liar(url, out);
		if (!WIFEXITED(status) || !WEXITSTATUS(status)) {
			printf("# operation %u: wait status %#x\n", op, (unsigned)status);
			wrong++;
		}
	}
	is_int(wrong, 0, "nor does any other operation do harm");
	shutdown(listener, SHUT_RDWR);
	pthread_join(thread, NULL);
	return done_testing();
}
