/* The subcommands of gradcomp: one file each, called cmd_NAME.c. argv[0] is the
 * subcommand's name. A command returns the exit status: 0, 1 for a failure whose
 * message it has printed, 2 for wrong usage. Whether stdout could be written is
 * checked by main(). */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include <stdbool.h>
#include <stdio.h>

#include "gradcomp/gradcomp.h"

int cmd_bench(int argc, char **argv);
int cmd_cache(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_config(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_help_option(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_metrics(int argc, char **argv);
int cmd_new(int argc, char **argv);
int cmd_rendezvous(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_plugin_check(int argc, char **argv);
int cmd_probe(int argc, char **argv);
int cmd_prolog(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_stage(int argc, char **argv);
int cmd_watch(int argc, char **argv);

/* `text` to stdout, the status 0. */
int command_usage_help(const char *text);
/* One line on stderr about what is wrong, then the first line of `text`; the
 * status 2. */
int command_usage_error(const char *text, const char *fmt, ...) GRADCOMP_PRINTF(2, 3);
/* The same for an option whose value is not what it must be. */
int command_usage_value(const char *text, const char *option, const char *value, const char *want);
/* The text of an error on stderr, the status 1. */
int command_failed(const gradcomp_error *err);

/* The options of a command. Each takes `--name VALUE` and `--name=VALUE`, or, with
 * value NULL, is a switch. With both it may be repeated: `value` has room for COMMAND_TIMES_MOST, and `flag` counts. */
enum { COMMAND_TIMES_MOST = 16 };
typedef struct command_option {
	const char *name;   /* with "--" */
	const char **value; /* or */
	int *flag;
} command_option;

/* Takes options and at most `nwords` words out of argv. Returns -1 to go on, or
 * the exit status (after --help or an error). */
int command_take_options(int argc, char **argv, const char *usage, const command_option *options, const char **words,
                         int nwords);

/* From now on SIGINT, SIGTERM and SIGHUP are only noted, but those that are ignored, and
 * SIGPIPE is ignored. The signal that came, or 0: a command that sees one cleans up and
 * ends with 128 + its number. */
void command_catch_signals(void);
int command_caught_signal(void);

/* "rank=INT (1..64, default 4)    help" for every parameter of every plugin: compressors that are recommended, others,
 * classic ones, collectives. `only` is a name or NULL; *found counts what was printed. */
gradcomp_status plugin_list_print(const char *only, int *found, int *unusable, gradcomp_error *err);
/* Returns "recommended" or "classic", or NULL for a compressor that is neither. */
const char *plugin_list_group(const char *name);
/* Which collective carries which payloads and compressors, as two Markdown tables. */
gradcomp_status compat_print(gradcomp_error *err);
/* Says if slurmd runs the prologs and epilogs of the SPANK plugin on this node, by what they and the stagers note. */
#define PROLOG_RECORDS "/run/gradcomp"
typedef enum prolog_mark {
	PROLOG_UNKNOWN, /* no job has been here yet */
	PROLOG_RUNS,
	PROLOG_UNSEEN /* a job was started without */
} prolog_mark;
prolog_mark prolog_seen(const char *records);
/* Every setting with its value and origin. */
gradcomp_status config_print_settings(gradcomp_error *err);

#endif
