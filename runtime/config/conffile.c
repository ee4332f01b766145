/* gradcomp.conf: which sections and keys there are. */
#include "config/conffile.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "config/inifile.h"
#include "base/secure.h"
#include "config/settings.h"
#include "base/suggest.h"
#include "base/text.h"

typedef struct conffile {
	conffile_take *take;
	void *ctx;
	int seen[SET_COUNT]; /* a line number for each setting */
} conffile;

static int known_section(const char *name, size_t n)
{
	for (size_t i = 0; i < SET_COUNT; i++)
		if (!strncmp(settings_table[i].row.name, name, n) && settings_table[i].row.name[n] == '.')
			return 1;
	return 0;
}

static const char *section_list(char *out, size_t capacity)
{
	const char *last = "";
	size_t at = 0;
	out[0] = '\0';
	for (size_t i = 0; i < SET_COUNT && at < capacity; i++) {
		const char *name = settings_table[i].row.name;
		size_t n = strcspn(name, ".");

		if (!strncmp(name, last, n + 1))
			continue;
		at += (size_t)snprintf(out + at, capacity - at, "%s[%.*s]", i ? ", " : "", (int)n, name);
		last = name;
	}
	return out;
}

/* A name that is unknown for what cannot be seen in it. */
static bool hidden_in(inifile *f, const char *kind, const char *name, size_t n)
{
	char text[128];
	const char *what;
	int at;
	snprintf(text, sizeof text, "%.*s", (int)n, name);
	at = text_hidden(text, &what);
	if (at >= 0)
		inifile_fail(f, "there is %s in the %s '%.*s', %s, which cannot be seen: write the line anew", what,
		             kind, at ? at : 80, at ? text : text + strcspn(text, "abcdefghijklmnopqrstuvwxyz"),
		             at ? "behind what is shown" : "before it");
	return at >= 0;
}

static void conffile_section(inifile *f, const char *name, size_t n)
{
	char list[200];
	if (!known_section(name, n) && !hidden_in(f, "section", name, n))
		inifile_fail(f, "unknown section [%.*s]; there are %s", (int)n, name, section_list(list, sizeof list));
}

static void unknown_key(inifile *f, const char *section, const char *name, const char *key)
{
	suggest near;
	if (hidden_in(f, "key", key, strlen(key)))
		return;
	suggest_start(&near, name);
	for (size_t i = 0; i < SET_COUNT; i++)
		suggest_try(&near, settings_table[i].row.name);
	inifile_fail(f, "unknown key '%s' in section [%s]%s", key, section, suggest_text(&near));
}

static void conffile_key(inifile *f, const char *section, const char *key, const char *value)
{
	conffile *c = f->ctx;
	char name[128], *origin;
	setting_id index;
	snprintf(name, sizeof name, "%s.%s", section, key);
	index = settings_find(name);
	if (index == SET_COUNT) {
		unknown_key(f, section, name, key);
		return;
	}
	if (c->seen[index] && !settings_table[index].separator) {
		inifile_fail(f, "%s was given in line %d already", name, c->seen[index]);
		return;
	}
	c->seen[index] = f->line;
	if (asprintf(&origin, "%s:%d", f->path, f->line) < 0) {
		f->status = error_set(f->err, GRADCOMP_ERR_NOMEM, "no memory for settings");
		return;
	}
	f->status = c->take(c->ctx, index, value, origin, f->err);
	if (f->status == GRADCOMP_ERR_NOTFOUND) /* which is to mean that there is no file */
		f->status = f->err->status = GRADCOMP_ERR_INVALID;
	free(origin);
}

const char *conffile_site(void)
{
	return GRADCOMP_SYSCONFDIR "/gradcomp/gradcomp.conf";
}

gradcomp_status conffile_read(const char *path, conffile_take *take, void *ctx, gradcomp_error *err)
{
	conffile c = {.take = take, .ctx = ctx};
	inifile f = {.path = path, .err = err, .section = conffile_section, .key = conffile_key, .ctx = &c};
	gradcomp_status st;
	char *real = NULL;
	FILE *stream;
	int fd;
	st = secure_open(path, &fd, &real, err);
	if (st)
		return st;
	stream = fdopen(fd, "r");
	st = stream ? inifile_read(&f, stream) : error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	if (stream)
		fclose(stream);
	else
		close(fd);
	free(real);
	return st;
}

static int pick_drop_in(const struct dirent *e)
{
	size_t n = strlen(e->d_name);
	return e->d_name[0] != '.' && n > 5 && !strcmp(e->d_name + n - 5, ".conf");
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name); /* whatever the locale */
}

gradcomp_status conffile_drop_ins(const char *path, conffile_take *take, void *ctx, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	struct dirent **list = NULL;
	char *folder, *file;
	int n = -1;
	if (asprintf(&folder, "%.*sconf.d", (int)(strrchr(path, '/') + 1 - path), path) < 0)
		return error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	n = scandir(folder, &list, pick_drop_in, by_name);
	if (n < 0 && errno != ENOENT)
		st = error_errno(err, GRADCOMP_ERR_IO, "%s", folder);
	for (int i = 0; i < n; i++) {
		if (!st && asprintf(&file, "%s/%s", folder, list[i]->d_name) < 0) {
			st = error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", folder);
		} else if (!st) {
			st = conffile_read(file, take, ctx, err);
			if (st == GRADCOMP_ERR_NOTFOUND) /* a link that leads nowhere, not the absence of settings */
				st = err->status = GRADCOMP_ERR_INVALID;
			free(file);
		}
		free(list[i]);
	}
	free(list);
	free(folder);
	return st;
}
