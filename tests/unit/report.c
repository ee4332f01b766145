/* The report: its name, its room, that it appears whole or not at all, and the
 * one line for people. */
#include "job/report.h"

#include "base/job_path.h"
#include "job/report_internal.h"

#include "tests/support/tap.h"
#include "tests/support/dir_entries.h"
#include "tests/support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static gradcomp_error e;

static const report_tensor tensors[] = {{"fc1.weight", 65536, "powersgd", 0.75},
                                        {"fc1.bias \"q\"\xff", 256, "dense", -1}};
static const char *const hosts[] = {"n1", "n1", "n2", "n2"};
static const report_link_kind kinds[] = {{"shm", 2, NULL}, {"tcp", 4, NULL}, {"verbs", 0, "not allowed"}};
static const char *const map[16] = {"self", "shm", "tcp",  "tcp", "shm", "self", "tcp", "tcp",
                                    "tcp",  "tcp", "self", "shm", "tcp", "tcp",  "shm", "self"};
static const report_link links[] = {{"shm", 1, 1000, 2000}, {"tcp", 2, 3000000000u, 4}};

static report_reducer reducer(void)
{
	return (report_reducer){
		.asked = "powersgd:rank=4",
		.compressor = "powersgd:rank=4",
		.collective = "ring",
		.nranks = 4,
		.stats = {.struct_size = sizeof(gradcomp_reducer_stats),
	                  .buckets = 2,
	                  .steps = 450,
	                  .dense_bytes = 450 * 17.46e6,
	                  .wire_bytes = 450 * 0.67e6,
	                  .encode_s = 450 * 1.2e-3,
	                  .exchange_s = 450 * 8.1e-3,
	                  .decode_s = 450 * 0.9e-3,
	                  .exposed_s = 450 * 6.63e-3,
	                  .error_steps = 450,
	                  .error_mean = 0.62,
	                  .error_last = 0.5},
		.tensors = tensors,
		.ntensors = 2,
	};
}

static const network_row networks[] = {
	{.name = "10.2.0.0/24", .interface = "eth1", .claimed = 10000, .rate = 9400, .measured = true, .chosen = true},
	{.name = "10.1.0.0/24"}};

static report_job job_of(const report_reducer *r, uint32_t n)
{
	return (report_job){.job_id = "77",
	                    .step_id = "0",
	                    .nranks = 4,
	                    .nnodes = 2,
	                    .hosts = hosts,
	                    .wall_s = 12.5,
	                    .reducers = r,
	                    .nreducers = n,
	                    .links = links,
	                    .nlinks = 2,
	                    .link_kinds = kinds,
	                    .nlink_kinds = 3,
	                    .link_map = map,
	                    .networks = networks,
	                    .nnetworks = 2};
}

static const char *expanded(const char *path)
{
	static char out[300];
	char *text;
	if (job_path_expand("report", path, &text, &e))
		return e.text;
	snprintf(out, sizeof out, "%s", text);
	free(text);
	return out;
}

static void paths(void)
{
	char pid[40];
	setenv("SLURM_JOB_ID", "12", 1);
	setenv("SLURM_STEP_ID", "3", 1);
	is_str(expanded("/a/%j-%s-100%%.json"), "/a/12-3-100%.json", "job and step");
	setenv("SLURM_JOB_ID", "../../etc", 1);
	snprintf(pid, sizeof pid, "%ld", (long)getpid());
	is_str(expanded("%j"), pid, "a job id that is no number is not believed");
	unsetenv("SLURM_JOB_ID");
	unsetenv("SLURM_STEP_ID");
	is_str(expanded("%j"), pid, "outside of Slurm");
	is_str(expanded("%s"), "0", "no step");
	like(expanded(""), "needs a file name", "empty");
	like(expanded("/tmp/"), "names a directory", "a directory");
	like(expanded("a%x"), "after '%' may come j (job), s (step)", "an unknown letter");
	like(expanded("a%"), "after '%' may come", "'%' at the end");
	like(expanded("a\nb"), "control character", "newline");
}

static void whole(void)
{
	static char asked[] = "mgwfbp", plan[] = "omgs, lag 0";
	report_bucket buckets[2] = {{3, 1, 500}, {1, 0, 20}};
	report_schedule schedule = {.asked = asked,
	                            .plan = plan,
	                            .buckets = buckets,
	                            .nbuckets = 2,
	                            .plans = 1,
	                            .measured = 1,
	                            .exchange_a = 0.001,
	                            .exchange_b = 1e-9,
	                            .predicted = 0.04,
	                            .fixed = 0.05,
	                            .step = 0.041};
	report_reducer red = reducer();
	report_job job = job_of(&red, 1);
	red.schedule = &schedule;
	const rank_times times[4] = {{.steps = 10, .link_rate = 1e7, .link_s = 2, .link_bytes = 1e7},
	                             {.steps = 10, .link_rate = 1e7, .link_s = 2, .link_bytes = 1e7, .link_full = 1}};
	job.times = times;
	char path[100], command[2600];
	struct stat st;
	report *r;

	snprintf(path, sizeof path, "%s/r.json", tmpdir);
	is_int(report_open(path, &r, &e), 0, "open");
	is_int(access(path, F_OK), -1, "the file is not there yet");
	is_int(report_close(r, &job, &e), 0, "close");
	is_int(stat(path, &st), 0, "the file is there");
	is_int(st.st_mode & 07777, 0644, "as the umask says");
	ok(st.st_size > 500 && st.st_size < 5600, "cut to its length (%ld bytes)", (long)st.st_size);
	is_int(entries(tmpdir), 1, "and nothing else");

	snprintf(
		command, sizeof command,
		"python3 - '%s' <<'END'\nimport json, sys\nd = json.load(open(sys.argv[1], encoding='utf-8'))\n"
		"r = d['reducers'][0]\n"
		"assert d['schema'] == 1 and d['job'] == '77' and d['failure'] is None and d['hosts'] == ['n1', 'n1', "
		"'n2', 'n2']\n"
		"assert d['links'][1] == dict(transport='tcp', connections=2, sent_bytes=3000000000, received_bytes=4)\n"
		"assert [t['link_mbit'] for t in d['times']] == [None, 40, None, None]\n"
		"assert d['link_kinds'][1] == dict(transport='tcp', pairs=4, why_not=None)\n"
		"assert d['link_kinds'][2] == dict(transport='verbs', pairs=0, why_not='not allowed')\n"
		"assert d['networks'] == [dict(network='10.2.0.0/24', interface='eth1', driver_mbit=10000, measured_mbit=9400, used=True),\n"
		"  dict(network='10.1.0.0/24', interface=None, driver_mbit=None, measured_mbit=None, used=False)]\n"
		"assert len(d['link_map']) == 4 and d['link_map'][2] == ['tcp', 'tcp', 'self', 'shm']\n"
		"assert r['steps'] == 450 and abs(r['ratio'] - 26.06) < 0.01 and abs(r['hidden'] - 0.35) < 1e-6\n"
		"assert r['error_mean'] == 0.62 and r['error_last'] == 0.5 and r['tensors'][0]['error'] == 0.75\n"
		"s = r['schedule']\n"
		"assert s['asked'] == 'mgwfbp' and s['plan'] == 'omgs, lag 0' and s['fallback'] is None and s['plans'] == 1\n"
		"assert s['buckets'] == [dict(tensors=3, numel=500, position=1), dict(tensors=1, numel=20, position=0)]\n"
		"assert s['exchange'] == dict(a=0.001, b=1e-9) and s['predicted_s'] == 0.04 and s['step_s'] == 0.041\n"
		"assert r['tensors'][1] == dict(name='fc1.bias \"q\"\\ufffd', numel=256, choice='dense', error=None)\nEND",
		path);
	is_int(system(command), 0, "Python reads what was meant");

	is_int(report_open(path, &r, &e), 0, "open over an older report");
	ok(!stat(path, &st) && st.st_size > 500, "which stays until the end");
	report_abandon(r);
	report_abandon(NULL);
	ok(!stat(path, &st) && st.st_size > 500, "and when the new one is abandoned");
	is_int(entries(tmpdir), 1, "nothing is left behind");

	job.failure = "rank 3 on n2 died";
	is_int(report_open(path, &r, &e), 0, "again");
	if (chdir("/"))
		exit(2);
	is_int(report_close(r, &job, &e), 0, "replaced");
	snprintf(command, sizeof command, "grep -q '\"failure\": \"rank 3 on n2 died\"' '%s'", path);
	is_int(system(command), 0, "with the failure");
	unlink(path);
}

static void bad_places(void)
{
	char path[100];
	report *r;
	is_int(report_open("/nonexistent/r.json", &r, &e), GRADCOMP_ERR_IO, "no such directory");
	like(e.text, "report /nonexistent/r.json cannot be written: directory /nonexistent/: No such file",
	     "says which");
	is_int(report_open("/dev/full", &r, &e), GRADCOMP_ERR_IO, "a device");
	snprintf(path, sizeof path, "%s/d", tmpdir);
	mkdir(path, 0755);
	is_int(report_open(path, &r, &e), GRADCOMP_ERR_IO, "a directory");
	like(e.text, "something of that name that is no file", "says so");
	rmdir(path);
	is_int(entries(tmpdir), 0, "nothing is left behind");
}

/* Runs in a child that has a mount namespace of its own. */
static int in_small_file_system(const char *size, int (*body)(void))
{
	int status;
	pid_t pid = fork();
	if (!pid) {
		char options[40];
		snprintf(options, sizeof options, "size=%s", size);
		if (unshare(CLONE_NEWNS) || mount("none", "/", "none", MS_REC | MS_PRIVATE, "") ||
		    mount("none", tmpdir, "tmpfs", 0, options))
			_exit(99);
		_exit(body());
	}
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

static int full_at_start(void)
{
	char path[100];
	report *r;
	snprintf(path, sizeof path, "%s/r.json", tmpdir);
	if (report_open(path, &r, &e) != GRADCOMP_ERR_IO)
		return 1;
	return !strstr(e.text, "no room of 1048576 bytes: No space left on device") || entries(tmpdir) != 0;
}

static int filled_meanwhile(void)
{
	report_reducer red = reducer();
	report_job job = job_of(&red, 1);
	char path[100], block[4096] = {0};
	report *r;
	snprintf(path, sizeof path, "%s/r.json", tmpdir);
	if (report_open(path, &r, &e))
		return 1;
	char filler[100];
	snprintf(filler, sizeof filler, "%s/filler", tmpdir);
	int fd = open(filler, O_WRONLY | O_CREAT, 0600);
	while (write(fd, block, sizeof block) > 0)
		;
	close(fd);
	/* Room was taken before the disk filled up. */
	return report_close(r, &job, &e) != 0 || access(path, F_OK) != 0;
}

static void full_disk(void)
{
	int status = in_small_file_system("64k", full_at_start);
	if (status == 99) {
		skip("cannot mount here", "a full disk at the start");
		skip("cannot mount here", "a disk that fills up meanwhile");
		return;
	}
	is_int(status, 0, "a full disk is an error at the start");
	is_int(in_small_file_system("2m", filled_meanwhile), 0, "a disk that fills up meanwhile is not");
}

/* From now on openat() knows no O_TMPFILE, as on NFS. */
static int forget_tmpfile(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof code / sizeof code[0], code};
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int hidden_file(void)
{
	report_reducer red = reducer();
	report_job job = job_of(&red, 1);
	char path[100];
	report *r;
	if (forget_tmpfile())
		return 99;
	snprintf(path, sizeof path, "%s/r.json", tmpdir);
	if (report_open(path, &r, &e) || entries(tmpdir) != 1 || !access(path, F_OK))
		return 1;
	report_abandon(r);
	if (entries(tmpdir) != 0)
		return 2;
	if (report_open(path, &r, &e) || report_close(r, &job, &e))
		return 3;
	return access(path, F_OK) || entries(tmpdir) != 1 || unlink(path) ? 4 : 0;
}

static void no_tmpfile(void)
{
	int status = 98;
	pid_t pid = fork();
	if (!pid)
		_exit(hidden_file());
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 99)
		skip("seccomp is not available", "a file system without O_TMPFILE");
	else
		is_int(status, 0, "a file system without O_TMPFILE: a hidden file, gone when abandoned");
}

/* Killed in the middle: no half file, no hidden file. */
static void killed(void)
{
	char path[100];
	pid_t pid = fork();
	report *r;
	snprintf(path, sizeof path, "%s/r.json", tmpdir);
	if (!pid) {
		if (report_open(path, &r, &e))
			_exit(1);
		kill(getpid(), SIGKILL);
	}
	int status;
	waitpid(pid, &status, 0);
	ok(WIFSIGNALED(status), "killed with a report open");
	is_int(entries(tmpdir), 0, "leaves nothing");
}

static void lines(void)
{
	report_reducer red[2] = {reducer(), reducer()};
	report_job job = job_of(red, 1);
	char line[400], tiny[10];
	job.nnodes = 4;
	report_line(&job, line, sizeof line);
	is_str(line,
	       "powersgd:rank=4 on 4 ranks of 4 nodes: 450 steps, 26.1x fewer bytes (0.67 of 17.46 MB a step), encode "
	       "1.2 ms, exchange 8.1 ms, decode 0.9 ms, 35 % hidden, error 62 %",
	       "the line");
	report_line(&job, tiny, sizeof tiny);
	is_str(tiny, "powersgd:", "cut to fit");
	red[0].stats.wire_bytes = red[0].stats.dense_bytes;
	red[0].stats.steps = 1;
	red[0].stats.nonfinite_steps = 1;
	red[0].stats.exposed_s = 1e9;
	job.failure = "rank 1 died";
	report_line(&job, line, sizeof line);
	like(line, ": 1 step, 7857.00 MB a step, encode", "no gain is not called one");
	like(line, ", 0 % hidden, error 62 %, 1 step with NaN or Inf; failed: rank 1 died",
	     "nothing hidden, a failure");
	red[0].stats.dense_bytes = 1;
	job.nreducers = 2;
	report_line(&job, line, sizeof line);
	like(line, "450 steps, 26.1x", "the larger reducer speaks");
	like(line, "; 1 more reducer", "and names the other");
	job.nreducers = 0;
	job.failure = NULL;
	report_line(&job, line, sizeof line);
	is_str(line, "no gradient was reduced on 4 ranks of 4 nodes", "no reducer");
	memset(&red[0].stats, 0, sizeof red[0].stats);
	red[0].stats.steps = 3;
	job.nreducers = 1;
	report_line(&job, line, sizeof line);
	like(line, "3 steps, nothing sent, encode 0.0 ms, exchange 0.0 ms, decode 0.0 ms", "one rank sends nothing");
	ok(!strstr(line, "hidden") && !strstr(line, "error"), "and hides nothing");
	red[0].stats.error_steps = 3;
	red[0].stats.error_mean = 0.0123;
	report_line(&job, line, sizeof line);
	like(line, "decode 0.0 ms, error 1.2 %", "a small error has a digit more");
}

int main(void)
{
	umask(022);
	tmpdir_make("report");
	paths();
	whole();
	bad_places();
	full_disk();
	no_tmpfile();
	killed();
	lines();
	return done_testing();
}
