/* gradcomp help-option: what srun --gradcomp=help prints. */
#include <string.h>

#include "tools/commands.h"

static const char usage[] = "usage: gradcomp help-option [stage]\n"
			    "\n"
			    "Explains the option --gradcomp of srun, sbatch and salloc, or --gradcomp-stage:\n"
			    "how to write it, the plugins found, the settings in force.\n";

static const char text[] =
	"srun --gradcomp=SPEC reduces the gradients of programs that use gradcomp.\n"
	"\n"
	"A SPEC is NAME[:key=value[,key=value...]], for instance powersgd:rank=4.\n"
	"  auto   what makes steps shorter, or nothing: measured while the job runs\n"
	"  none   gradients go uncompressed, through gradcomp\n"
	"  off    leave the job alone, whatever an outer sbatch or salloc asked for\n"
	"  help   this text\n"
	"\n"
	"  --gradcomp-collective=SPEC   how the ranks exchange what was compressed\n"
	"  --gradcomp-report=FILE       a report of the job (JSON; %j is the job, %s the step)\n"
	"  --gradcomp-schedule=SPEC     how gradients are merged: wfbp, single, fixed:bytes=25M, mgwfbp, omgs, auto\n"
	"  --gradcomp-record=FILE       the model of the job, for gradcomp plan\n"
	"  --gradcomp-auto-attach=no    leave the models of PyTorch programs alone that do not call attach()\n"
	"  --gradcomp-on-failure=shrink a program that can shrink goes on without ranks that are lost\n"
	"  --gradcomp-stage=SPEC        copy datasets to every node first; see --gradcomp-stage=help\n"
	"\n";

static const char stage_text[] =
	"srun --gradcomp-stage=SPEC copies datasets to a cache on every node of a step, before\n"
	"its tasks start. They find the copy in GRADCOMP_DATA.\n"
	"\n"
	"A SPEC is SOURCE[:key=value[,key=value...]], or several, separated by commas:\n"
	"  /nfs/images                              a directory, or a file\n"
	"  nfs://server/export/images               the same without a mount\n"
	"  /nfs/images:mode=shard,/nfs/labels.json  two; the second is in GRADCOMP_DATA_1\n"
	"  none                                     nothing, whatever an outer sbatch asked for\n"
	"  help                                     this text\n"
	"\n"
	"  mode=full    every node has all of it (default)\n"
	"  mode=shard   node i of n has every n-th file; GRADCOMP_DATA_SHARD is i/n\n"
	"  mode=link    nothing is copied: the source is checked, and used where it is\n"
	"  verify=mtime a copy is good when names, sizes and times agree (default)\n"
	"  verify=sha   when the source's contents agree too: it is read again\n"
	"  verify=copy  when the copy's checksums agree: the copy is read again\n"
	"  exclude=GLOB what has such a name (or path, with a '/') is left out; any number\n"
	"  links=follow symbolic links are copied as what they lead to\n"
	"  links=rewrite absolute links into the tree become relative\n"
	"  unreadable=skip what you may not read is left out\n"
	"\n"
	"A relative SOURCE is in the working directory of the tasks. A comma, a backslash and\n"
	"a colon in it may be written behind a backslash: '/a\\,b' is one path.\n"
	"\n";

int cmd_help_option(int argc, char **argv)
{
	const command_option none = {NULL, NULL, NULL};
	const char *about = NULL;
	int found, unusable, status = command_take_options(argc, argv, usage, &none, &about, 1);
	gradcomp_error err;
	if (status >= 0)
		return status;
	if (about && strcmp(about, "stage") != 0)
		return command_usage_error(usage, "help-option knows nothing of '%s'", about);
	fputs(about ? stage_text : text, stdout);
	if (!about && plugin_list_print(NULL, &found, &unusable, &err))
		return command_failed(&err);
	if (!about)
		putchar('\n');
	return config_print_settings(&err) ? command_failed(&err) : 0;
}
