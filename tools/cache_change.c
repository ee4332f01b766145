/* gradcomp cache verify, gc, pin, unpin, evict, clear and lease. */
#include <stdio.h>
#include <string.h>

#include "tools/cmd_cache.h"
#include "tools/commands.h"
#include "gradcomp/stage.h"
#include "base/json.h"

struct outcome {
	const cache_request *r;
	jsonw j;
	unsigned long long n, bytes;
	int status;
	char error[sizeof((gradcomp_error *)0)->text]; /* the first one */
};

static void begin(struct outcome *o, const cache_request *r, const char *array)
{
	*o = (struct outcome){.r = r};
	if (r->json) {
		json_put_start(&o->j, stdout);
		json_put_object(&o->j, NULL);
		json_put_string(&o->j, "user", r->who);
		json_put_bool(&o->j, "dry_run", (r->options.flags & GRADCOMP_CACHE_DRY_RUN) != 0);
		json_put_array(&o->j, array);
	} else if (r->who)
		printf("%s:\n", r->who);
}

static void note(struct outcome *o, const gradcomp_error *err)
{
	if (!o->status)
		snprintf(o->error, sizeof o->error, "%s", err->text);
	o->status = command_failed(err);
}

static int end(struct outcome *o)
{
	if (o->r->json) {
		json_put_end(&o->j);
		json_put_string(&o->j, "error", o->status ? o->error : NULL);
		json_put_end(&o->j);
		json_put_finish(&o->j);
	}
	return o->status;
}

static void on_removed(void *ctx, const char *what, const char *name, uint64_t bytes)
{
	struct outcome *o = ctx;
	char size[32];
	o->n++;
	o->bytes += bytes;
	if (o->r->json) {
		json_put_object(&o->j, NULL);
		json_put_string(&o->j, "what", what);
		json_put_string(&o->j, "name", name);
		json_put_uint(&o->j, "bytes", bytes);
		json_put_end(&o->j);
		return;
	}
	printf("%s %s %.12s", o->r->options.flags & GRADCOMP_CACHE_DRY_RUN ? "would remove" : "removed", what, name);
	printf(bytes ? ", %s\n" : "\n", gradcomp_size_text(bytes, size));
}

static void on_damaged(void *ctx, const char *key, const char *file, const char *what)
{
	struct outcome *o = ctx;
	o->n++;
	if (o->r->json) {
		json_put_object(&o->j, NULL);
		json_put_string(&o->j, "key", key);
		json_put_string(&o->j, "file", file);
		json_put_string(&o->j, "what", what);
		json_put_end(&o->j);
	} else
		printf("%.12s: %s %s\n", key, file, what);
}

/* Calls one() with the key of each entry that was named. */
static int each_name(struct outcome *o, gradcomp_status (*one)(struct outcome *o, const char *key, gradcomp_error *err))
{
	for (const char *const *name = o->r->names; *name; name++) {
		gradcomp_error err;
		char key[65];
		if (gradcomp_cache_find(&o->r->options, *name, key, &err) || one(o, key, &err))
			note(o, &err);
	}
	return end(o);
}

static gradcomp_status verify_one(struct outcome *o, const char *key, gradcomp_error *err)
{
	return gradcomp_cache_verify(&o->r->options, key, on_damaged, o, err);
}

int cache_verb_verify(const cache_request *r)
{
	struct outcome o;
	gradcomp_error err;
	begin(&o, r, "damaged");
	if (r->names[0])
		return each_name(&o, verify_one);
	if (gradcomp_cache_verify(&r->options, NULL, on_damaged, &o, &err))
		note(&o, &err);
	return end(&o);
}

int cache_verb_gc(const cache_request *r)
{
	struct outcome o;
	gradcomp_error err;
	begin(&o, r, "removed");
	if (gradcomp_cache_gc(&r->options, r->job, on_removed, &o, &err))
		note(&o, &err);
	return end(&o);
}

static gradcomp_status evict_one(struct outcome *o, const char *key, gradcomp_error *err)
{
	return gradcomp_cache_evict(&o->r->options, key, on_removed, o, err);
}

int cache_verb_evict(const cache_request *r)
{
	struct outcome o;
	begin(&o, r, "removed");
	return each_name(&o, evict_one);
}

int cache_verb_clear(const cache_request *r)
{
	struct outcome o;
	gradcomp_error err;
	uint32_t kept = 0;
	begin(&o, r, "removed");
	if (gradcomp_cache_clear(&r->options, on_removed, &o, &kept, &err))
		note(&o, &err);
	else if (kept)
		fprintf(stderr, "gradcomp: %u cop%s stay%s, leased, pinned or being staged (gradcomp cache list)\n",
		        (unsigned)kept, kept == 1 ? "y" : "ies", kept == 1 ? "s" : "");
	return end(&o);
}

/* Tells what was done to an entry. */
static void said(struct outcome *o, const char *key, const char *done)
{
	if (o->r->json)
		json_put_string(&o->j, NULL, key);
	else
		printf("%s%s %.12s\n", o->r->options.flags & GRADCOMP_CACHE_DRY_RUN ? "would have " : "", done, key);
}

static gradcomp_status pin_one(struct outcome *o, const char *key, gradcomp_error *err)
{
	gradcomp_status st = gradcomp_cache_pin(&o->r->options, key, err);
	if (!st)
		said(o, key, "pinned");
	return st;
}

int cache_verb_pin(const cache_request *r)
{
	struct outcome o;
	begin(&o, r, "keys");
	return each_name(&o, pin_one);
}

static gradcomp_status unpin_one(struct outcome *o, const char *key, gradcomp_error *err)
{
	gradcomp_status st = gradcomp_cache_unpin(&o->r->options, key, err);
	if (!st)
		said(o, key, "unpinned");
	return st;
}

int cache_verb_unpin(const cache_request *r)
{
	struct outcome o;
	begin(&o, r, "keys");
	return each_name(&o, unpin_one);
}

static gradcomp_status lease_one(struct outcome *o, const char *key, gradcomp_error *err)
{
	gradcomp_status st = gradcomp_cache_lease_job(&o->r->options, key, o->r->job, o->r->holder, err);
	if (!st)
		said(o, key, "leased");
	return st;
}

int cache_verb_lease(const cache_request *r)
{
	struct outcome o;
	begin(&o, r, "keys");
	return each_name(&o, lease_one);
}
