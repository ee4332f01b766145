/* The parts of the SPANK plugin that need no Slurm around them: values and their
 * bounds, the line in plugstack.conf, the child process. */
#include "tests/support/tap.h"

#ifdef HAVE_SLURM

#include "spank/arguments.c"
#include "spank/options.c"
#include "spank/exec_helper.c"
#include "spank/spank_log.c"

#include <dirent.h>
#include <pthread.h>
#include <sys/ioctl.h>

/* Slurm's, which is not linked here. */
static int registered;
spank_err_t spank_option_register(spank_t sp, struct spank_option *opt)
{
	(void)sp;
	registered += opt->name && opt->usage && opt->has_arg == 1 && opt->cb;
	return ESPANK_SUCCESS;
}

static int callback(int which, const char *value, int remote)
{
	return (which && value) ? remote : 0;
}

static void values(void)
{
	options o = {{NULL}};
	char why[300] = "", *large = malloc(OPTION_BYTES + 1);
	is_int(options_register(NULL, callback), 0, "options register");
	is_int(registered, OPTION_COUNT, "all of them, with one argument each");
	ok(!options_any(&o), "none is given at first");
	is_int(options_set(&o, OPTION_COMPRESSOR, "topk", why, sizeof why), 0, "a value");
	is_int(options_set(&o, OPTION_COMPRESSOR, "none", why, sizeof why), 0, "a later one");
	is_str(options_value(&o, OPTION_COMPRESSOR), "none", "counts");
	memset(large, 'x', OPTION_BYTES);
	large[OPTION_BYTES] = 0;
	is_int(options_set(&o, OPTION_REPORT, large, why, sizeof why), -1, "4096 bytes are too many");
	like(why, "--gradcomp-report has a value of more than 4095", "and the text says which");
	is_int(options_set(&o, OPTION_REPORT, large + 1, why, sizeof why), 0, "4095 are not");
	static const char *const bad[] = {"", "a#b", "a\nb", "a\tb", "\x7f", "\x1b[31m"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		is_int(options_set(&o, OPTION_STAGE, bad[i], why, sizeof why), -1, "bad value %zu", i);
	is_int(options_set(&o, OPTION_STAGE, NULL, why, sizeof why), -1, "no value");
	is_int(options_set(&o, -1, "x", why, sizeof why), -1, "no such option, below");
	is_int(options_set(&o, OPTION_COUNT, "x", why, sizeof why), -1, "no such option, above");
	ok(!options_value(&o, OPTION_STAGE), "a refused value leaves nothing");
	is_int(options_set(&o, OPTION_STAGE, "none", why, sizeof why), 0, "none");
	ok(!options_value(&o, OPTION_STAGE) && options_any(&o), "turns an option off");
	ok(!options_off(&o), "none is not off");
	is_int(options_set(&o, OPTION_RECORD, "none", why, sizeof why), 0, "record=none");
	ok(!options_value(&o, OPTION_RECORD), "turns it off");
	is_int(options_set(&o, OPTION_SCHEDULE, "none", why, sizeof why), 0, "schedule=none");
	is_str(options_value(&o, OPTION_SCHEDULE), "none", "is for the check to refuse");
	options_set(&o, OPTION_ATTACH, "no", why, sizeof why);
	is_str(options_value(&o, OPTION_ATTACH), "no", "auto-attach=no is a value");
	options_set(&o, OPTION_ON_FAILURE, "none", why, sizeof why);
	is_str(options_value(&o, OPTION_ON_FAILURE), "none", "on-failure=none is for the check to refuse");
	options_set(&o, OPTION_COMPRESSOR, "off", why, sizeof why);
	ok(options_off(&o) && !options_value(&o, OPTION_COMPRESSOR), "off is");
	options_clear(&o);
	ok(!options_any(&o), "cleared");
	free(large);
}

static void components(void)
{
	options sets[3] = {{{[OPTION_COMPRESSOR] = (char *)"topk", [OPTION_REPORT] = (char *)"r.json"}},
	                   {{NULL}},
	                   {{[OPTION_COMPRESSOR] = (char *)"none",
	                     [OPTION_COLLECTIVE] = (char *)"ring",
	                     [OPTION_SCHEDULE] = (char *)"mgwfbp",
	                     [OPTION_RECORD] = (char *)"m",
	                     [OPTION_STAGE] = (char *)"/data"}}};
	char *text = options_join(sets, 3), why[300];
	options o = {{NULL}};
	for (int k = 0; k < 3; k++) {
		is_int(options_split(text, k, &o, why, sizeof why), 0, "component %d", k);
		int same = 1;
		for (int i = 0; i < OPTION_COUNT; i++)
			same &= o.value[i] && sets[k].value[i] ? !strcmp(o.value[i], sets[k].value[i])
			                                       : !o.value[i] == !sets[k].value[i];
		ok(same, "component %d has its values", k);
	}
	is_int(options_split(text, 3, &o, why, sizeof why), -1, "there is no fourth");
	like(why, "not known", "which is said");
	static const char *const bad[] = {"",
	                                  "a",
	                                  "a\n",
	                                  "a\tb\tc\n",
	                                  "a\tb\tc\td",
	                                  "a\tb\tc\td\n",
	                                  "a\tb\tc\td\te\tf\tg\th\ti\n",
	                                  "#\t\t\t\t\t\t\t\n",
	                                  "\t\t\x01\t\t\t\t\t\n"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		is_int(options_split(bad[i], 0, &o, why, sizeof why), -1, "damaged text %zu", i);
	is_int(options_split(text, -1, &o, why, sizeof why), -1, "a number below 0");
	options_clear(&o);
	free(text);
}

static void line(void)
{
	arguments a;
	char *none[] = {NULL}, *good[] = {(char *)"helper=/x/y", (char *)"conf=/c", (char *)"stage_timeout=0"};
	arguments_parse(&a, 0, none);
	is_str(a.helper, GRADCOMP_BINDIR "/gradcomp", "the command is where it was installed");
	is_str(a.python, GRADCOMP_LIBDIR "/gradcomp/python", "and so is the package");
	is_int(a.stage_timeout, 3600, "an hour");
	is_str(a.error, "", "no arguments are fine");
	arguments_parse(&a, 3, good);
	ok(!a.error[0] && !strcmp(a.helper, "/x/y") && !strcmp(a.conf, "/c") && a.stage_timeout == 0, "all arguments");
	static const char *const bad[] = {"help=/x",
	                                  "helper",
	                                  "helper=",
	                                  "helper=x",
	                                  "conf=c",
	                                  "python=x",
	                                  "python=/a:/b",
	                                  "stage_timeout=",
	                                  "plan_user=",
	                                  "stage_timeout=-1",
	                                  "stage_timeout=1x",
	                                  "stage_timeout= 1",
	                                  "stage_timeout=99999999999999999999",
	                                  "",
	                                  "="};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char *one[] = {(char *)bad[i]};
		arguments_parse(&a, 1, one);
		like(a.error, bad[i], "a bad argument is named");
	}
}

static char lines[4000];
static int nlines;
static void keep(void *ctx, const char *text, bool passing)
{
	(void)ctx;
	nlines++;
	snprintf(lines + strlen(lines), sizeof lines - strlen(lines), passing ? "(%s)" : "[%s]", text);
}

static int feed; /* the command's stdin */

static int sh(const char *script, int timeout, char *output, char *why)
{
	char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, NULL}, *env[] = {(char *)"A=b", NULL};
	static exec_helper r;
	r = (exec_helper){.argv = argv, .env = env, .timeout = timeout, .line = keep, .in = feed};
	lines[0] = why[0] = 0;
	nlines = 0;
	int status = exec_helper_run(&r, why, 300);
	strcpy(output, r.output);
	return status;
}

static void command(void)
{
	static char out[EXEC_OUTPUT_BYTES + 1];
	char why[300];
	char *missing[] = {(char *)"/no/such/file", NULL}, *env[] = {NULL};
	static exec_helper r;
	int ends[2];
	r = (exec_helper){.argv = missing, .env = env};

	is_int(sh("echo path; echo more; echo a >&2; echo gradcomp: b >&2; printf c >&2", 0, out, why), 0, "a command");
	is_str(out, "path\nmore\n", "its output");
	is_str(lines, "[a][b][c]", "the lines of its errors, without the prefix");
	is_int(sh("exit 7", 0, out, why), 7, "exit status");
	is_int(sh("kill -9 $$", 0, out, why), -1, "a signal");
	like(why, "signal 9", "is named");
	is_int(sh("printf '\\033[31mred\\001\\n\\n\\r' >&2", 0, out, why), 0, "control characters");
	is_str(lines, "[ [31mred ]", "do not reach the terminal");
	is_int(sh("yes | head -n 5000 >&2", 0, out, why), 0, "a flood of lines");
	is_int(nlines, LINES_MAX, "ends");
	is_int(sh("printf '1\\r2\\r3\\n' >&2; yes x | head -n 300 | tr '\\n' '\\r' >&2; echo last >&2", 0, out, why), 0,
	       "lines of progress");
	is_int(!strncmp(lines, "(1)(2)[3](x)", 12), 1, "are told from others");
	is_int(nlines, 304, "and are not counted against them");
	is_int(pipe(ends), 0, "a pipe");
	(void)!write(ends[1], "told\n", 5);
	feed = ends[0];
	is_int(sh("cat; echo done", 1, out, why), -1, "a command that reads its stdin to the end");
	close(ends[1]);
	is_int(sh("cat; echo done", 0, out, why), 0, "ends when we close ours");
	feed = 0;
	close(ends[0]);
	if (getuid() == 0) {
		exec_user nobody = {65534, 65534, {65534}, 1};
		char *who[] = {(char *)"/bin/sh", (char *)"-c",
		               (char *)"id -u; id -g; id -G; grep CapEff /proc/self/status", NULL};
		r = (exec_helper){.argv = who, .env = env, .user = &nobody};
		is_int(exec_helper_run(&r, why, sizeof why), 0, "as another user");
		/* CAP_WAKE_ALARM is of no use to it and keeps others out */
		char *wake_alarm = strstr(r.output, "0000000800000000");
		if (wake_alarm)
			wake_alarm[7] = '0';
		is_str(r.output, "65534\n65534\n65534\nCapEff:\t0000000000000000\n", "with nothing of root's");
		r.argv = missing;
		r.user = NULL;
	} else {
		skip("needs root", "as another user");
	}
	{
		char *yes[] = {(char *)"/bin/sh", (char *)"-c", (char *)"exec yes", NULL};
		int pipe_ends[2], own = dup(1);

		if (pipe(pipe_ends) || dup2(pipe_ends[1], 1) != 1)
			exit(2);
		close(pipe_ends[0]);
		close(pipe_ends[1]);
		r = (exec_helper){.argv = yes, .env = env, .show_output = true};
		int status = exec_helper_run(&r, why, sizeof why);
		dup2(own, 1);
		close(own);
		is_int(status, 0, "a reader of the output who has gone is no failure");
		r = (exec_helper){.argv = missing, .env = env};
	}
	is_int(sh("head -c 100000 /dev/zero | tr '\\0' x", 0, out, why), 0, "more output than 16 paths have");
	is_str(out, "", "is none");
	is_int(sh("trap '' TERM; exec sleep 60", 1, out, why), -1, "a command that does not end, nor on SIGTERM");
	like(why, "did not end within 1 s", "is stopped");
	is_int(sh("sleep 60 & echo $!", 0, out, why), 0, "a grandchild that keeps the pipe does not hold us up");
	if (atoi(out) > 1)
		kill(atoi(out), SIGKILL);
	is_int(sh("echo $A $(ls /proc/self/fd | wc -l)", 0, out, why), 0, "what the child has");
	is_str(out, "b 4\n", "its environment, and the three standard files (the fourth is ls's own)");
	is_int(sh("grep -c 'NoNewPrivs:.1' /proc/self/status", 0, out, why), 0, "it can gain no privilege");
	is_int(exec_helper_run(&r, why, sizeof why), -1, "a command that is not there");
	like(why, "cannot run /no/such/file: No such file or directory", "is named");
}

static void *read_late(void *end)
{
	char text[64];
	usleep(200000);
	return (void *)read(*(int *)end, text, sizeof text);
}

static void flush(void)
{
	int ends[2], own = dup(2), left = -1;
	pthread_t reader;
	if (pipe(ends) < 0 || dup2(ends[1], 2) < 0 || write(2, "last words\n", 11) != 11 ||
	    pthread_create(&reader, NULL, read_late, &ends[0]))
		exit(1);
	log_flush();
	ioctl(ends[0], FIONREAD, &left);
	dup2(own, 2);
	is_int(left, 0, "a flush returns when the text has been read");
	pthread_join(reader, NULL);
	close(ends[0]), close(ends[1]);
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	dup2(null, 2);
	log_flush();
	dup2(own, 2);
	close(null), close(own);
	ok(1, "and at once where there is no pipe");
}

static int open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

int main(void)
{
	values();
	components();
	line();
	int before = open_files();
	command();
	flush();
	is_int(open_files(), before, "no file is left open");
	return done_testing();
}

#else

int main(void)
{
	printf("1..0 # SKIP no Slurm: no SPANK plugin\n");
	return 0;
}

#endif
