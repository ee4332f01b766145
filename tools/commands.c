/* Options, usage and errors, alike in all commands. */
#include <string.h>
#include <signal.h>

#include "tools/commands.h"
#include "gradcomp/stage.h"

int command_usage_help(const char *text)
{
	fputs(text, stdout);
	return 0;
}

int command_usage_error(const char *text, const char *fmt, ...)
{
	va_list ap;
	fputs("gradcomp: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n%.*s\n", (int)strcspn(text, "\n"), text);
	return 2;
}

int command_usage_value(const char *text, const char *option, const char *value, const char *want)
{
	char name[120];
	return command_usage_error(text, "%s is '%s'; %s", option, gradcomp_printable(value, name, sizeof name), want);
}

int command_failed(const gradcomp_error *err)
{
	fprintf(stderr, "gradcomp: %s\n", err->text[0] ? err->text : gradcomp_strerror(err->status));
	return 1;
}

/* The value of the option `name` in argv[*i], or NULL when it has none. */
static const char *option_value(int argc, char **argv, int *i, size_t name_length)
{
	if (argv[*i][name_length] == '=')
		return argv[*i] + name_length + 1;
	return *i + 1 < argc ? argv[++*i] : NULL;
}

static const command_option *find_option(const command_option *options, const char *arg)
{
	for (; options->name; options++) {
		size_t n = strlen(options->name);

		if (!strncmp(options->name, arg, n) && (!arg[n] || (arg[n] == '=' && options->value)))
			return options;
	}
	return NULL;
}

int command_take_options(int argc, char **argv, const char *usage, const command_option *options, const char **words,
                         int nwords)
{
	int taken = 0, ended = 0; /* by "--" */
	for (int i = 1; i < argc; i++) {
		const command_option *o;

		if (!ended && !strcmp(argv[i], "--")) {
			ended = 1;
			continue;
		}
		if (!ended && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")))
			return command_usage_help(usage);
		if (ended || argv[i][0] != '-') {
			if (taken == nwords)
				return command_usage_error(usage, "%s: one argument too many: '%s'", argv[0], argv[i]);
			words[taken++] = argv[i];
			continue;
		}
		o = find_option(options, argv[i]);
		if (!o)
			return command_usage_error(usage, "%s: unknown option '%s'", argv[0], argv[i]);
		if (!o->value) {
			*o->flag = 1;
			continue;
		}
		const char *value = option_value(argc, argv, &i, strlen(o->name));
		if (!value)
			return command_usage_error(usage, "%s: %s needs a value", argv[0], o->name);
		if (o->flag && *o->flag == COMMAND_TIMES_MOST)
			return command_usage_error(usage, "%s: %s '%s' is one too many; it can be given %d times",
			                           argv[0], o->name, value, COMMAND_TIMES_MOST);
		o->value[o->flag ? (*o->flag)++ : 0] = value;
	}
	return -1;
}

/* Signals that ask a command to stop, noted for it to look at. */

static volatile sig_atomic_t caught;

static void on_signal(int sig)
{
	caught = sig;
}

void command_catch_signals(void)
{
	static const int sigs[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	sigemptyset(&sa.sa_mask);
	for (size_t i = 0; i < sizeof sigs / sizeof sigs[0]; i++) {
		struct sigaction old;
		/* A signal that the parent ignores (nohup) stays ignored. */
		if (sigaction(sigs[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
			sigaction(sigs[i], &sa, NULL);
	}
	/* A reader that went away must not leave half a result behind. */
	signal(SIGPIPE, SIG_IGN);
}

int command_caught_signal(void)
{
	return caught;
}
