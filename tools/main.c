/* gradcomp: looks at what is installed and configured, measures, prints reports. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tools/commands.h"
#include "base/suggest.h"

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
} commands[] = {
	{"list", cmd_list, "plugins and their parameters"},
	{"config", cmd_config, "settings, their values and where they come from"},
	{"check", cmd_check, "whether compressor, collective and report can be used"},
	{"run", cmd_run, "ranks without Slurm"},
	{"metrics", cmd_metrics, "what this node's jobs have done, for node_exporter"},
	{"doctor", cmd_doctor, "whether the nodes of an allocation are alike, and can form a job"},
	{"watch", cmd_watch, "a job while it runs: steps, times, bytes"},
	{"report", cmd_report, "the report of a job as a table"},
	{"stage", cmd_stage, "copies of datasets in this node's cache"},
	{"data", cmd_data, "what a loader would see of a dataset"},
	{"cache", cmd_cache, "what is in this node's cache, and how it is kept in order"},
	{"prolog", cmd_prolog, "what the prolog of every job stages"},
	{"rendezvous", cmd_rendezvous, "where the nodes of a step find each other to stage"},
	{"probe", cmd_probe, "what messages, bytes and compressors cost on these nodes"},
	{"bench", cmd_bench, "how fast this job's ranks reduce"},
	{"plan", cmd_plan, "what a step of a model will take, and what to ask for"},
	{"new", cmd_new, "a folder with a plugin to begin with"},
	{"plugin-check", cmd_plugin_check, "whether a plugin keeps the rules"},
	{"help-option", cmd_help_option, "what srun --gradcomp=help prints"},
};

static int print_usage(void)
{
	puts("usage: gradcomp COMMAND [ARGUMENTS]\n\ncommands:");
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		printf("  %-12s %s\n", commands[i].name, commands[i].summary);
	printf("  %-12s %s\n  %-12s %s\n\ngradcomp COMMAND --help says more.\n", "version",
	       "the version of the library", "help", "this text");
	return 0;
}

static int wrong_command(const char *name)
{
	suggest near;
	suggest_start(&near, name);
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		suggest_try(&near, commands[i].name);
	if (*name)
		fprintf(stderr, "gradcomp: unknown command '%s'%s\n", name, suggest_text(&near));
	fputs("usage: gradcomp COMMAND [ARGUMENTS]; gradcomp help lists the commands\n", stderr);
	return 2;
}

static int run(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h"))
		return print_usage();
	if (!strcmp(name, "version") || !strcmp(name, "--version") || !strcmp(name, "-V")) {
		printf("gradcomp %s\n", gradcomp_version());
		return 0;
	}
	/* A prolog or an epilog listens to these as root: other processes of the account that they
	 * run as are not to trace them, or to take their descriptors and speak in their name. */
	if (!strcmp(name, "prolog") || !strcmp(name, "cache") || !strcmp(name, "metrics"))
		prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		if (!strcmp(name, commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
	return wrong_command(name);
}

/* A file opened by us must not become stdout because that was closed: its place is
 * taken by something that cannot be written. */
static void fill_standard_files(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
			exit(1);
}

int main(int argc, char **argv)
{
	int status, bad;
	fill_standard_files();
	status = run(argc, argv);
	bad = ferror(stdout) | (fclose(stdout) != 0);
	if (!bad)
		return status;
	/* The one who closed a pipe knows. */
	if (errno != EPIPE)
		fprintf(stderr, "gradcomp: cannot write the output: %s\n", strerror(errno));
	return status ? status : 1;
}
