/* gradcomp new: a folder with a plugin to begin with. It is one of the installed examples under another name,
 * so it builds and keeps the rules as it is. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fileio.h"
#include "base/install.h"
#include "base/text.h"
#include "gradcomp/stage.h"
#include "tools/commands.h"

static const char usage[] = "usage: gradcomp new compressor NAME [--pattern PATTERN] [--cxx] [--examples DIR]\n"
			    "       gradcomp new collective NAME [--examples DIR]\n"
			    "\n"
			    "Makes the folder NAME with a plugin of that name that builds (make), keeps the rules\n"
			    "(make check) and can be installed (make install). It is an example; what it does is for\n"
			    "you to change.\n"
			    "\n"
			    "  --pattern PATTERN  how payloads of ranks come together: summed (the default),\n"
			    "                     gathered, merged or coded; lowrank: factors of matrices, summed\n"
			    "  --cxx              in C++17; for --pattern gathered\n"
			    "  --examples DIR     where the examples are, if not where they were installed\n";

#define NAME_MOST 31
#define SOURCE_MOST (64 << 10)

static const struct example {
	const char *kind, *pattern, *name, *suffix;
} examples[] = {
	{"compressor", "summed", "cyclic", ".c"},  {"compressor", "gathered", "fewbits", ".c"},
	{"compressor", "merged", "loudest", ".c"}, {"compressor", "coded", "upper", ".c"},
	{"compressor", "lowrank", "slim", ".c"},   {"compressor", "gathered", "peaks", ".cpp"},
	{"collective", "", "star", ".c"},
};

static const struct example *find(const char *kind, const char *pattern, int cxx)
{
	for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++)
		if (!strcmp(examples[i].kind, kind) && !strcmp(examples[i].pattern, pattern) &&
		    cxx == !strcmp(examples[i].suffix, ".cpp"))
			return &examples[i];
	return NULL;
}

/* It becomes a name in C, too. */
static bool is_name(const char *name)
{
	return islower((unsigned char)*name) && strlen(name) <= NAME_MOST &&
	       !name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")];
}

static bool is_letter(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* The next `word` of a text as a whole word, or NULL. */
static const char *next_word(const char *text, const char *from, const char *word)
{
	size_t n = strlen(word);
	for (const char *p = from; (p = strstr(p, word)); p += n)
		if ((p == text || !is_letter(p[-1])) && !is_letter(p[n]))
			return p;
	return NULL;
}

static void write_source(FILE *f, const char *text, const char *from, const char *to)
{
	const char *p = text;
	for (const char *at; (at = next_word(text, p, from)); p = at + strlen(from))
		fprintf(f, "%.*s%s", (int)(at - p), p, to);
	fputs(p, f);
}

static void write_makefile(FILE *f, const struct example *e, const char *name)
{
	int cxx = !strcmp(e->suffix, ".cpp");
	fprintf(f,
	        "# Builds %s.so, checks it against the rules and installs it. Needs an installed gradcomp, whose\n"
	        "# headers and folders pkg-config tells (PKG_CONFIG_PATH=PREFIX/lib/pkgconfig when it is not in a\n"
	        "# standard place).\n"
	        "%s = -O2 -Wall -Wextra\n"
	        "PKG_CONFIG = pkg-config\n"
	        "\n"
	        "%s.so: %s%s\n"
	        "\t$(%s) -std=%s -fPIC -shared -fvisibility=hidden -ffp-contract=off $(%s) \\\n"
	        "\t\t$$($(PKG_CONFIG) --cflags gradcomp-sdk) -o $@ $< $$($(PKG_CONFIG) --libs gradcomp-sdk)\n"
	        "\n"
	        "check: %s.so\n"
	        "\tgradcomp plugin-check ./%s.so\n"
	        "\n"
	        "install: %s.so\n"
	        "\tinstall -D -m 0755 %s.so \"$(DESTDIR)$$($(PKG_CONFIG) --variable=%sdir gradcomp-sdk)/%s.so\"\n"
	        "\n"
	        "clean:\n"
	        "\trm -f %s.so\n"
	        "\n"
	        ".PHONY: check install clean\n",
	        name, cxx ? "CXXFLAGS" : "CFLAGS", name, name, e->suffix, cxx ? "CXX" : "CC", cxx ? "c++17" : "gnu11",
	        cxx ? "CXXFLAGS" : "CFLAGS", name, name, name, name, e->kind, name, name);
}

/* The example's text, or NULL and the reason has been said. */
static char *read_example(const struct example *e, const char *dir)
{
	char *folder = dir ? strdup(dir) : install_path(GRADCOMP_DATADIR "/gradcomp/examples"),
	     *text = calloc(1, SOURCE_MOST + 1);
	char path[PATH_MAX], name[TEXT_NAME_MAX];
	int64_t n = -1;
	int fd;
	snprintf(path, sizeof path, "%s/%s%s", folder ? folder : GRADCOMP_DATADIR "/gradcomp/examples", e->name,
	         e->suffix);
	free(folder);
	gradcomp_printable(path, name, sizeof name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (!text)
		fputs("gradcomp: out of memory\n", stderr);
	else if (fd < 0 || (n = fileio_read(fd, text, SOURCE_MOST, 0)) < 0)
		fprintf(stderr, "gradcomp: cannot read the example %s: %s; --examples names its folder\n", name,
		        strerror(errno));
	else if (n == SOURCE_MOST || strlen(text) < (size_t)n) {
		fprintf(stderr, "gradcomp: %s is no source of an example\n", name);
		n = -1;
	}
	if (fd >= 0)
		close(fd);
	if (n >= 0)
		return text;
	free(text);
	return NULL;
}

/* A file of the folder; what is wrong with it has been said when this is NULL. */
static FILE *create(int folder, const char *file)
{
	int fd = openat(folder, file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
	if (!f) {
		fprintf(stderr, "gradcomp: cannot make %s: %s\n", file, strerror(errno));
		if (fd >= 0)
			close(fd);
	}
	return f;
}

static int finish(FILE *f, const char *file)
{
	int bad = ferror(f);
	if (!fclose(f) && !bad)
		return 0;
	fprintf(stderr, "gradcomp: cannot write %s: %s\n", file, strerror(errno));
	return 1;
}

static int write_folder(int folder, const struct example *e, const char *name, const char *text, const char *source)
{
	FILE *f = create(folder, source);
	if (!f)
		return 1;
	write_source(f, text, e->name, name);
	if (finish(f, source) || !(f = create(folder, "Makefile")))
		return 1;
	write_makefile(f, e, name);
	return finish(f, "Makefile");
}

static int make_folder(const struct example *e, const char *name, const char *text)
{
	char source[NAME_MOST + 8];
	int folder, status;
	if (mkdir(name, 0777)) {
		fprintf(stderr, "gradcomp: cannot make the folder %s: %s\n", name, strerror(errno));
		return 1;
	}
	snprintf(source, sizeof source, "%s%s", name, e->suffix);
	folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	status = folder < 0 ? 1 : write_folder(folder, e, name, text, source);
	if (status && folder >= 0) {
		unlinkat(folder, source, 0);
		unlinkat(folder, "Makefile", 0);
	}
	if (status)
		rmdir(name);
	if (folder >= 0)
		close(folder);
	return status;
}

int cmd_new(int argc, char **argv)
{
	const char *words[2] = {NULL, NULL}, *pattern = NULL, *dir = NULL;
	int cxx = 0, status;
	const command_option options[] = {
		{"--pattern", &pattern, NULL}, {"--cxx", NULL, &cxx}, {"--examples", &dir, NULL}, {0}};
	const struct example *e;
	char printable[TEXT_NAME_MAX], *text;
	status = command_take_options(argc, argv, usage, options, words, 2);
	if (status >= 0)
		return status;
	if (!words[1] || (strcmp(words[0], "compressor") && strcmp(words[0], "collective")))
		return command_usage_error(usage, "new makes a compressor or a collective, and gives it a name");
	if (!is_name(words[1]))
		return command_usage_error(
			usage,
			"'%s' is no name for a plugin: a small letter, then at most %d small letters, digits and '_'",
			gradcomp_printable(words[1], printable, sizeof printable), NAME_MOST - 1);
	e = find(words[0], pattern ? pattern : strcmp(words[0], "collective") ? "summed" : "", cxx);
	if (!e && cxx)
		return command_usage_error(usage,
		                           "the example in C++ is a compressor that gathers: --pattern gathered --cxx");
	if (!e)
		return command_usage_error(usage, "'%s' is no pattern of a %s: %s",
		                           gradcomp_printable(pattern, printable, sizeof printable), words[0],
		                           strcmp(words[0], "collective") ? "summed, gathered, merged, coded or lowrank"
		                                                          : "it has none");
	text = read_example(e, dir);
	if (!text)
		return 1;
	if (strcmp(words[1], e->name) && next_word(text, text, words[1])) {
		fprintf(stderr, "gradcomp: the example has another meaning for '%s'; choose another name\n", words[1]);
		free(text);
		return 1;
	}
	status = make_folder(e, words[1], text);
	free(text);
	if (!status)
		printf("%s/%s%s is a %s to begin with; next: cd %s && make check\n", words[1], words[1], e->suffix,
		       words[0], words[1]);
	return status;
}
