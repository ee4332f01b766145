/* Does to a job what another user may try (attack.t). Prints one line a deed; exit status 0 when all of it was
 * refused.
 *   attack garbage HOST PORT         random bytes
 *   attack half HOST PORT            half a greeting, then silence
 *   attack flood HOST PORT SECONDS   as many connections as it can hold
 *   attack crowd SOCKET FILE         every place in the queue of a local socket, until there
 *                                    is a file
 *   attack record DEVICE FILE        (the wire:) the first greeting that passes
 *   attack replay HOST PORT FILE     it again
 *   attack local                     at all abstract sockets of the node
 *   attack pry PID                   another user's process, its memory and files
 *   attack read FILE */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HELLO 64
#define CHALLENGE 64
#define PROOF 32

static int through; /* deeds that were not refused */

static void refused(const char *what, int well, const char *how)
{
	printf("%s: %s%s%s\n", what, well ? "NOT REFUSED" : "refused", how ? ", " : "", how ? how : "");
	through += well;
}

static void denied(const char *what, int failed)
{
	refused(what, !failed || errno != EPERM, failed ? strerror(errno) : NULL);
}

static double now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int dial(const char *host, const char *port)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	struct timeval limit = {8, 0};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (inet_pton(AF_INET, host, &in.sin_addr) != 1 || fd < 0)
		exit(2);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	if (connect(fd, (struct sockaddr *)&in, sizeof in)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Bytes that came before the end; -1 when it did not end. */
static long until_end(int fd)
{
	char buf[4096];
	long all = 0;
	for (;;) {
		ssize_t n = recv(fd, buf, sizeof buf, 0);

		if (n < 0 && errno != ECONNRESET)
			return -1;
		if (n <= 0)
			return all;
		all += n;
	}
}

static int garbage(const char *host, const char *port)
{
	unsigned char junk[1000];
	int answered = 0, open = 0;
	for (int i = 0; i < 50; i++) {
		int fd = dial(host, port);
		long n;

		if (getrandom(junk, sizeof junk, 0) < 0 || fd < 0)
			return 2;
		if (i % 2)
			memcpy(junk, "GCH2\0\1\0\1", 8);
		send(fd, junk, 100 + (size_t)i, MSG_NOSIGNAL);
		n = until_end(fd);
		answered += n > 0;
		open += n < 0;
		close(fd);
	}
	refused("garbage", answered || open, NULL);
	return 0;
}

static int half(const char *host, const char *port)
{
	double begin = now();
	char how[40];
	int fd = dial(host, port);
	long n;
	send(fd, "GCH2\0\0\0\1 half a greeting", 24, MSG_NOSIGNAL);
	n = until_end(fd);
	snprintf(how, sizeof how, "after %.1f s", now() - begin);
	refused("half a greeting", n, how);
	close(fd);
	return 0;
}

static int flood(const char *host, const char *port, double seconds)
{
	int fd[400];
	long made = 0;
	double end = now() + seconds;
	memset(fd, -1, sizeof fd);
	for (long i = 0; now() < end; i = (i + 1) % 400) {
		if (fd[i] >= 0)
			close(fd[i]);
		fd[i] = dial(host, port);
		made += fd[i] >= 0;
		if (i % 3 == 0 && fd[i] >= 0)
			send(fd[i], "GCH2", 4, MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	printf("flood: %ld connections in %.0f s\n", made, seconds);
	return made < 100;
}

static int crowd(const char *path, const char *until)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int n = 0, told = 0;
	snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
	for (double end = now() + 60; now() < end && access(until, F_OK);) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);

		if (!connect(fd, (struct sockaddr *)&un, sizeof un)) {
			n++;
			continue;
		}
		close(fd);
		if (!told++) {
			printf("crowd: no place left after %d connections\n", n);
			fflush(stdout);
		}
		poll(NULL, 0, 5);
	}
	return !told;
}

/* Sees every packet of the link, as whoever holds the wire does: a HELLO and the
 * proof that follows it. */
static int record(const char *device, const char *file)
{
	struct sockaddr_ll at = {
		.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_ifindex = (int)if_nametoindex(device)};
	int fd = socket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_IP));
	unsigned char p[65536], ports[4] = {0}, hello[HELLO];
	int have = 0;
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at))
		return 2;
	printf("recording\n");
	fflush(stdout);
	alarm(30);
	for (;;) {
		ssize_t n = recv(fd, p, sizeof p, 0), ip = 4 * (p[0] & 15);
		unsigned char *tcp = p + ip, *data;
		long bytes;

		if (n < ip + 20 || p[9] != IPPROTO_TCP)
			continue;
		data = tcp + 4 * (tcp[12] >> 4);
		bytes = (p[2] << 8 | p[3]) - (data - p);
		if (bytes == HELLO && !memcmp(data, "GCH", 3)) {
			memcpy(hello, data, HELLO);
			memcpy(ports, tcp, 4);
			have = 1;
		} else if (have && bytes == PROOF && !memcmp(ports, tcp, 4)) {
			FILE *f = fopen(file, "wb");

			if (!f || fwrite(hello, HELLO, 1, f) != 1 || fwrite(data, PROOF, 1, f) != 1 || fclose(f))
				return 2;
			/* The ranks that connected, and where to. */
			printf("recorded: rank %d to rank %d, port %d\n", hello[8], hello[12], tcp[2] << 8 | tcp[3]);
			return 0;
		}
	}
}

static int replay(const char *host, const char *port, const char *file)
{
	unsigned char said[HELLO + PROOF], challenge[CHALLENGE];
	FILE *f = fopen(file, "rb");
	int fd = dial(host, port);
	long n;
	if (!f || fread(said, sizeof said, 1, f) != 1 || fd < 0)
		return 2;
	fclose(f);
	send(fd, said, HELLO, MSG_NOSIGNAL);
	if (recv(fd, challenge, sizeof challenge, MSG_WAITALL) != CHALLENGE) {
		printf("replay: no challenge, so this was no test\n");
		return 2;
	}
	send(fd, said + HELLO, PROOF, MSG_NOSIGNAL);
	n = until_end(fd);
	refused("the same proof again", n, NULL);
	close(fd);
	fd = dial(host, port);
	send(fd, said, HELLO, MSG_NOSIGNAL);
	if (recv(fd, challenge, sizeof challenge, MSG_WAITALL) != CHALLENGE)
		return 2;
	send(fd, challenge + 32, PROOF, MSG_NOSIGNAL);
	n = until_end(fd);
	refused("the rank's own proof sent back", n, NULL);
	close(fd);
	return 0;
}

static int local(void)
{
	FILE *f = fopen("/proc/net/unix", "r");
	char line[400], name[200];
	unsigned flags, type;
	int tried = 0, came = 0;
	while (f && fgets(line, sizeof line, f)) {
		struct sockaddr_un un = {.sun_family = AF_UNIX};
		struct timeval limit = {5, 0};
		int fd;

		if (sscanf(line, "%*s %*x %*x %x %x %*x %*d @%199s", &flags, &type, name) != 3 || !(flags & 0x10000) ||
		    type != SOCK_STREAM || strlen(name) != 5)
			continue;
		memcpy(un.sun_path + 1, name, 5);
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		if (!connect(fd, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 6))) {
			tried++;
			send(fd, "GCH2\0\0\0\1....................................................", HELLO,
			     MSG_NOSIGNAL);
			came += until_end(fd) != 0;
		}
		close(fd);
	}
	if (f)
		fclose(f);
	if (!tried)
		return 2;
	snprintf(line, sizeof line, "%d sockets", tried);
	refused("local sockets", came, line);
	return 0;
}

static void read_it(const char *path, const char *what)
{
	char buf[16];
	int fd = open(path, O_RDONLY);
	int well = fd >= 0 && read(fd, buf, sizeof buf) > 0;
	refused(what, well, strerror(errno));
	if (fd >= 0)
		close(fd);
}

static int opens(const char *path, int flags)
{
	int fd = open(path, flags);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static int pry(pid_t pid)
{
	struct iovec mine = {(char[8]){0}, 8}, theirs = {(void *)0x400000, 8};
	char path[64], fd_path[400];
	int opened = 0, pidfd;
	struct dirent *e;
	DIR *d;
	if (kill(pid, 0) && errno == ESRCH)
		return 2;
	snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		snprintf(fd_path, sizeof fd_path, "%s/%s", path, e->d_name);
		opened += e->d_name[0] != '.' && opens(fd_path, O_RDWR);
	}
	refused("its files and shared memory", d != NULL || opened, NULL);
	/* Names can be guessed without the list. */
	for (int i = 0; i < 64; i++) {
		snprintf(fd_path, sizeof fd_path, "%s/%d", path, i);
		opened += opens(fd_path, O_RDONLY);
	}
	refused("its files by number", opened, NULL);
	snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
	read_it(path, "its environment");
	snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
	read_it(path, "its map");
	snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
	read_it(path, "its memory as a file");
	/* Denied, not just at a wrong address. */
	denied("its memory", process_vm_readv(pid, &mine, 1, &theirs, 1, 0) < 0);
	denied("to trace it", ptrace(PTRACE_ATTACH, pid, NULL, NULL) < 0);
	denied("to kill it", kill(pid, SIGTERM) < 0);
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd >= 0) {
		opened = 0;
		for (int i = 3; i < 40; i++)
			opened += syscall(SYS_pidfd_getfd, pidfd, i, 0) >= 0;
		refused("copies of its descriptors", opened, strerror(errno));
		denied("a signal by descriptor", syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0) < 0);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int rc = 2;
	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(mode, "garbage") && argc == 4)
		rc = garbage(argv[2], argv[3]);
	else if (!strcmp(mode, "half") && argc == 4)
		rc = half(argv[2], argv[3]);
	else if (!strcmp(mode, "flood") && argc == 5)
		rc = flood(argv[2], argv[3], atof(argv[4]));
	else if (!strcmp(mode, "crowd") && argc == 4)
		rc = crowd(argv[2], argv[3]);
	else if (!strcmp(mode, "record") && argc == 4)
		rc = record(argv[2], argv[3]);
	else if (!strcmp(mode, "replay") && argc == 5)
		rc = replay(argv[2], argv[3], argv[4]);
	else if (!strcmp(mode, "local"))
		rc = local();
	else if (!strcmp(mode, "pry") && argc == 3)
		rc = pry(atoi(argv[2]));
	else if (!strcmp(mode, "read") && argc == 3)
		read_it(argv[2], "the file"), rc = 0;
	return rc ? rc : through != 0;
}
