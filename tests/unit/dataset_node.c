/* A dataset on one node: every sample made once, whoever asks, and right ever after. */
#include "tests/support/dataset_fixture.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static uint64_t samples_count;
static uint32_t workers, samples_ahead;

static void epochs(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(samples_count);
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)rank;
	(void)b;
	o.workers = workers;
	o.prefetch = samples_ahead;
	if ((v->wrong = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0))
		return;
	for (uint64_t e = 0; e < 3; e++)
		v->wrong |= samples_epoch(ds, e, 0, &v->error) << e;
	v->stats.struct_size = sizeof v->stats;
	gradcomp_dataset_get_stats(ds, &v->stats);
	v->wrong |= (v->stats.loaded + v->stats.local != 3 * gradcomp_dataset_length(ds)) << 4;
	v->wrong |= (gradcomp_dataset_free(ds, &v->error) != 0) << 5;
}

static const char *settings[] = {NULL, "transport.timeout=30", "gradcomp.log=error", NULL};

static void sizes(void)
{
	static const uint64_t counts[] = {0, 1, 3, 257, 1000};
	static const uint32_t pools[][2] = {{0, 0}, {1, 1}, {3, 8}};
	for (int P = 1; P <= 5; P += P == 1 ? 2 : P == 3 ? 2 : 1)
		for (size_t w = 0; w < 3; w++) {
			int well = 1;
			for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
				samples_forget();
				samples_count = counts[k];
				workers = pools[w][0];
				samples_ahead = pools[w][1];
				process_board *b = run_processes(P, settings, epochs, sizeof(dataset_result));
				well &= all_well(b) && samples_each(all_samples->made, samples_count, 1) &&
				        samples_each(all_samples->seen, samples_count, 3);
				end_processes(b);
			}
			ok(well,
			   "%d ranks, %u workers, 0 to 1000 samples: each made once, and right once in each of 3 "
			   "epochs",
			   P, workers);
		}
}

/* The functions below check who else is on the node. */

enum { UNAUTHENTICATED = 3 };

/* Sockets of the same user's process that does not have the secret, connected as soon as there is one
 * to connect to. */
static int connect_unauthenticated(int fd[UNAUTHENTICATED])
{
	static const unsigned char said[64];
	char line[400], name[120];
	int n = 0;
	for (double begin = process_now(); !n && process_now() - begin < 20; usleep(1000)) {
		FILE *f = fopen("/proc/net/unix", "re");
		while (f && n < UNAUTHENTICATED && fgets(line, sizeof line, f)) {
			const char *at = strstr(line, "@gradcomp-");
			struct sockaddr_un sa = {.sun_family = AF_UNIX};
			if (!at || sscanf(at + 1, "%100s", name) != 1 || strlen(name) != 41)
				continue;
			memcpy(sa.sun_path + 1, name, strlen(name));
			for (int type = SOCK_STREAM; type <= SOCK_SEQPACKET && n < UNAUTHENTICATED; type++) {
				int s = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
				if (type != SOCK_DGRAM &&
				    !connect(s, (struct sockaddr *)&sa,
				             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)))) {
					send(s, said, sizeof said, MSG_NOSIGNAL);
					fd[n++] = s;
				} else
					close(s);
			}
		}
		if (f)
			fclose(f);
	}
	return n;
}

static int descriptors_came(int fd)
{
	char bytes[256];
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct iovec iov = {bytes, sizeof bytes};
	struct msghdr m;
	int came = 0;
	do {
		m = (struct msghdr){
			.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
		if (recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
			break;
		came += m.msg_controllen > 0;
	} while (!came);
	return came;
}

/* Rank 1 sends them before it comes itself. */
static void besieged(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(20);
	dataset_result *v = room;
	gradcomp_dataset *ds;
	int fd[UNAUTHENTICATED], n = rank ? connect_unauthenticated(fd) : 0;
	(void)b;
	v->stats.loaded = (uint64_t)n;
	if ((v->wrong = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0))
		return;
	for (int i = 0; i < n; i++) {
		v->wrong |= descriptors_came(fd[i]) << 1;
		close(fd[i]);
	}
	v->wrong |= samples_epoch(ds, 0, 0, &v->error) << 2;
	v->wrong |= (gradcomp_dataset_free(ds, &v->error) != 0) << 3;
}

static void without_secret(void)
{
	samples_forget();
	process_board *b = run_processes(2, settings, besieged, sizeof(dataset_result));
	const dataset_result *v = process_room(b, 1);
	ok(v->stats.loaded > 0, "processes without the secret connect first, %d times", (int)v->stats.loaded);
	ok(all_well(b), "they get no memory, and the ranks share it");
	end_processes(b);
}

static int child_part(gradcomp_dataset *ds, int k, int n, uint64_t count)
{
	gradcomp_value_view v = {.struct_size = sizeof v};
	gradcomp_error err = {0};
	for (uint64_t i = (uint64_t)k; i < count; i += (uint64_t)n) {
		uint64_t index = (i * 97 + 13) % count;
		if (gradcomp_dataset_get(ds, index, &v, &err) || !sample_right(&v, index)) {
			printf("# a child at sample %llu: %s\n", (unsigned long long)index, err.text);
			fflush(stdout);
			return 1;
		}
		atomic_fetch_add(&all_samples->seen[index], 1);
		gradcomp_dataset_release(ds, &v);
	}
	return gradcomp_dataset_next(ds, &v, &err) != GRADCOMP_ERR_STATE || gradcomp_dataset_free(ds, &err);
}

static int reap(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return 1;
	return status;
}

static void children(gradcomp_job *job, int rank, process_board *b, void *room)
{
	enum { CHILDREN = 3 };
	gradcomp_dataset_options o = samples_options(samples_count);
	dataset_result *v = room;
	gradcomp_dataset *ds;
	pid_t pid[CHILDREN];
	if ((v->wrong = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0))
		return;
	for (int e = 0; e < 2; e++) {
		for (int k = 0; k < CHILDREN; k++) {
			fflush(NULL);
			pid[k] = fork();
			if (!pid[k])
				_exit(child_part(ds, rank * CHILDREN + k, b->P * CHILDREN, samples_count));
		}
		for (int k = 0; k < CHILDREN; k++)
			v->wrong |= (reap(pid[k]) != 0) << e;
		v->wrong |= (gradcomp_barrier(gradcomp_job_world(job), &v->error) != 0) << 3;
	}
	v->stats.struct_size = sizeof v->stats;
	gradcomp_dataset_get_stats(ds, &v->stats);
	v->wrong |= (gradcomp_dataset_free(ds, &v->error) != 0) << 4;
}

static void forked(void)
{
	uint64_t made = 0;
	samples_forget();
	samples_count = 997;
	process_board *b = run_processes(3, settings, children, sizeof(dataset_result));
	ok(all_well(b) && samples_each(all_samples->made, samples_count, 1) &&
	           samples_each(all_samples->seen, samples_count, 2),
	   "3 ranks with 3 forked children each, 2 epochs by get(): each made once, each value right");
	for (int r = 0; r < 3; r++)
		made += ((dataset_result *)process_room(b, r))->stats.loaded;
	is_int(made, 997, "what children made is counted with their rank");
	end_processes(b);
}

/* A child dies while it makes a value: whoever wants it next makes it. */
static gradcomp_status deadly_load(void *ctx, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err)
{
	if (index == 5 && !atomic_exchange(&all_samples->go, 1)) {
		memset(out->alloc(out, sample_bytes(index)), 0xee, sample_bytes(index));
		atomic_store(&all_samples->step, 1);
		pause();
	}
	return sample_load(ctx, index, out, err);
}

static void killed_body(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(20);
	gradcomp_value_view view = {.struct_size = sizeof view};
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)b;
	o.load = deadly_load;
	if ((v->wrong = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0))
		return;
	if (rank == 0) {
		pid_t pid = fork();
		if (!pid)
			_exit(gradcomp_dataset_get(ds, 5, &view, NULL));
		while (!atomic_load(&all_samples->step))
			usleep(1000);
		pid_t waiter = fork();
		if (!waiter)
			_exit(gradcomp_dataset_get(ds, 5, &view, NULL) || !sample_right(&view, 5));
		usleep(50000);
		kill(pid, SIGKILL);
		reap(pid);
		v->wrong |= reap(waiter) != 0;
		v->wrong |= gradcomp_dataset_get(ds, 5, &view, &v->error) != 0 || !sample_right(&view, 5);
		gradcomp_dataset_release(ds, &view);
		v->stats.struct_size = sizeof v->stats;
		gradcomp_dataset_get_stats(ds, &v->stats);
	}
	v->wrong |= gradcomp_dataset_free(ds, &v->error) != 0;
}

static void killed(void)
{
	samples_forget();
	process_board *b = run_processes(2, settings, killed_body, sizeof(dataset_result));
	ok(all_well(b), "a child killed while it makes a value: one who waits for it makes it instead");
	is_int(((dataset_result *)process_room(b, 0))->stats.memory_used, (sample_bytes(5) + 63) / 64 * 64,
	       "in the room the dead one had taken");
	end_processes(b);
}

int main(void)
{
	settings[0] = plugin_path_setting();
	samples_begin();
	sizes();
	without_secret();
	forked();
	killed();
	return done_testing();
}
