/* gradcomp cache list and du. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tools/cmd_cache.h"
#include "tools/commands.h"
#include "gradcomp/stage.h"
#include "base/json.h"

struct list {
	const cache_request *r;
	jsonw j;
	unsigned long long shown;
};

static const char *const kinds[] = {"published", "unfinished", "evicted", "foreign"};

/* Returns true when the entry is one of those that were asked for: by key, its beginning, or source. */
static bool wanted(const cache_request *r, const gradcomp_cache_entry *e)
{
	if (!r->names[0])
		return true;
	for (const char *const *name = r->names; *name; name++) {
		size_t n = strlen(*name);
		if ((n >= 4 && !strncmp(e->key, *name, n)) || (e->source && !strcmp(e->source, *name)) ||
		    !strcmp(e->name, *name))
			return true;
	}
	return false;
}

static void entry_json(jsonw *j, const gradcomp_cache_entry *e)
{
	json_put_object(j, NULL);
	json_put_string(j, "name", e->name);
	json_put_string(j, "key", *e->key ? e->key : NULL);
	json_put_string(j, "kind", kinds[e->kind]);
	json_put_string(j, "source", e->source);
	json_put_string(j, "path", e->path);
	json_put_uint(j, "files", e->files);
	json_put_uint(j, "bytes", e->bytes);
	json_put_uint(j, "allocated", e->allocated);
	json_put_uint(j, "inodes", e->inodes);
	json_put_int(j, "last_use", e->last_use);
	json_put_bool(j, "pinned", (int)e->pinned);
	json_put_bool(j, "producing", (int)e->producing);
	json_put_array(j, "leases");
	for (uint32_t i = 0; i < e->nleases; i++) {
		const gradcomp_cache_lease *l = &e->leases[i];
		if (!l->pid && !l->job)
			continue;
		json_put_object(j, NULL);
		json_put_string(j, "holder", l->holder);
		if (l->pid)
			json_put_int(j, "pid", l->pid);
		else
			json_put_int(j, "job", l->job);
		json_put_bool(j, "alive", (int)l->alive);
		json_put_end(j);
	}
	json_put_end(j);
	json_put_end(j);
}

/* "pinned, leased by job 12.0 and 3 more" */
static void state_text(const gradcomp_cache_entry *e, char *out, size_t room)
{
	const char *first = NULL;
	uint32_t held = 0;
	for (uint32_t i = 0; i < e->nleases; i++)
		if (e->leases[i].alive && (e->leases[i].pid || e->leases[i].job) && !held++)
			first = e->leases[i].holder;
	int n = snprintf(out, room, "%s", e->kind != GRADCOMP_CACHE_PUBLISHED ? kinds[e->kind] : "");
	if (e->producing)
		n += snprintf(out + n, room - (size_t)n, "%sbeing staged", n ? ", " : "");
	if (e->pinned)
		n += snprintf(out + n, room - (size_t)n, "%spinned", n ? ", " : "");
	if (held)
		n += snprintf(out + n, room - (size_t)n, "%sleased by %.100s", n ? ", " : "", first);
	if (held > 1)
		n += snprintf(out + n, room - (size_t)n, " and %u more", (unsigned)held - 1);
	if (!n)
		snprintf(out, room, "-");
}

static void entry_text(struct list *l, const gradcomp_cache_entry *e)
{
	char size[32], when[32] = "-", state[256], name[300];
	time_t t = (time_t)e->last_use;
	struct tm tm;
	if (e->last_use && localtime_r(&t, &tm))
		strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
	state_text(e, state, sizeof state);
	if (!l->shown)
		printf("%-12s  %10s  %9s  %-16s  %s\n", "KEY", "SIZE", "FILES", "LAST USE", "SOURCE, STATE");
	printf("%-12.12s  %10s  %9llu  %-16s  %s%s%s\n", *e->key ? e->key : "-", gradcomp_size_text(e->allocated, size),
	       (unsigned long long)e->files, when,
	       gradcomp_printable(e->source ? e->source : e->name, name, sizeof name), strcmp(state, "-") ? ", " : "",
	       strcmp(state, "-") ? state : "");
}

static int each(void *ctx, const gradcomp_cache_entry *e)
{
	struct list *l = ctx;
	if (!wanted(l->r, e))
		return 0;
	if (l->r->json)
		entry_json(&l->j, e);
	else
		entry_text(l, e);
	l->shown++;
	return 0;
}

int cache_verb_list(const cache_request *r)
{
	struct list l = {.r = r};
	gradcomp_error err;
	if (r->json) {
		json_put_start(&l.j, stdout);
		json_put_object(&l.j, NULL);
		json_put_string(&l.j, "user", r->who);
		json_put_array(&l.j, "entries");
	} else if (r->who)
		printf("%s:\n", r->who);
	gradcomp_status st = gradcomp_cache_each(&r->options, each, &l, &err);
	if (r->json) {
		json_put_end(&l.j);
		json_put_string(&l.j, "error", st ? err.text : NULL);
		json_put_end(&l.j);
		json_put_finish(&l.j);
	} else if (!st && !l.shown)
		puts("nothing");
	return st ? command_failed(&err) : 0;
}

static void du_json(const cache_request *r, const gradcomp_cache_usage *u, const char *error)
{
	jsonw j;
	json_put_start(&j, stdout);
	json_put_object(&j, NULL);
	json_put_string(&j, "user", r->who);
	json_put_string(&j, "path", u->path);
	json_put_uint(&j, "copies", u->entries);
	json_put_uint(&j, "bytes", u->bytes);
	json_put_uint(&j, "evictable", u->evictable);
	json_put_uint(&j, "budget", u->budget);
	json_put_uint(&j, "high_mark", u->high);
	json_put_uint(&j, "low_mark", u->low);
	if (u->quota)
		json_put_uint(&j, "quota", u->quota);
	else
		json_put_null(&j, "quota");
	json_put_uint(&j, "disk_size", u->disk_size);
	json_put_uint(&j, "disk_free", u->disk_free);
	json_put_string(&j, "error", error);
	json_put_end(&j);
	json_put_finish(&j);
}

int cache_verb_du(const cache_request *r)
{
	static gradcomp_cache_usage u;
	char used[32], budget[32], evictable[32], left[32], quota[32], path[512];
	gradcomp_error err;
	memset(&u, 0, sizeof u);
	u.struct_size = sizeof u;
	gradcomp_status st = gradcomp_cache_get_usage(&r->options, &u, &err);
	if (r->json)
		du_json(r, &u, st ? err.text : NULL);
	if (st)
		return command_failed(&err);
	if (r->json)
		return 0;
	printf("%s%s%s in %u cop%s of the %s that stage.cache_bytes allows in %s, %s evictable, %s free on the "
	       "disk\n",
	       r->who ? r->who : "", r->who ? ": " : "", gradcomp_size_text(u.bytes, used), (unsigned)u.entries,
	       u.entries == 1 ? "y" : "ies", gradcomp_size_text(u.budget, budget),
	       gradcomp_printable(u.path, path, sizeof path), gradcomp_size_text(u.evictable, evictable),
	       gradcomp_size_text(u.disk_free, left));
	if (u.quota)
		printf("quota of each user (stage.user_bytes): %s\n", gradcomp_size_text(u.quota, quota));
	return 0;
}
