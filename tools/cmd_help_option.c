/* gradcomp help-option: what srun --gradcomp=help prints. */
#include "commands.h"

static const char usage[] = "usage: gradcomp help-option\n"
			    "\n"
			    "Explains the option --gradcomp of srun, sbatch and salloc: how to write it, the\n"
			    "plugins found, the settings in force.\n";

static const char text[] =
	"srun --gradcomp=SPEC reduces the gradients of programs that use gradcomp.\n"
	"\n"
	"A SPEC is NAME[:key=value[,key=value...]], for instance powersgd:rank=4.\n"
	"  none   gradients go uncompressed, through gradcomp\n"
	"  off    leave the job alone, whatever an outer sbatch or salloc asked for\n"
	"  help   this text\n"
	"\n"
	"  --gradcomp-collective=SPEC   how the ranks exchange what was compressed\n"
	"  --gradcomp-report=FILE       a report of the job (JSON; %j is the job, %s the step)\n"
	"  --gradcomp-stage=DIR         copy DIR to every node first; GRADCOMP_DATA says where\n"
	"\n";

int cmd_help_option(int argc, char **argv)
{
	const command_option none = {NULL, NULL, NULL};
	int found, unusable, status = take_options(argc, argv, usage, &none, NULL, 0);
	gradcomp_error err;

	if (status >= 0)
		return status;
	fputs(text, stdout);
	if (print_plugins(NULL, &found, &unusable, &err))
		return failed(&err);
	putchar('\n');
	return print_settings(&err) ? failed(&err) : 0;
}
