/* Compressors, collectives and schedules that are compared. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "config/spec.h"
#include "tools/bench_specs.h"
#include "tools/plan.h"

static const char schedules[] = "wfbp,single,fixed,mgwfbp,omgs,auto";

static gradcomp_status too_long(const char *text, gradcomp_error *err)
{
	err->status = GRADCOMP_ERR_INVALID;
	snprintf(err->text, sizeof err->text, "a SPEC of more than %d characters: %.60s...", PLAN_SPEC - 1, text);
	return err->status;
}

/* Returns the length of what is written of a parameter up to the next one. */
static size_t piece(const char *text)
{
	return strcspn(text, ",");
}

/* Both are canonical, with every parameter in the table's order. */
static void shorten(const char *full, const char *plain, char *out, size_t size)
{
	size_t name = strcspn(full, ":"), at;
	const char *before = ":";
	at = (size_t)snprintf(out, size, "%.*s", (int)name, full);
	if (strncmp(full, plain, name) || !full[name])
		return;
	for (full += name + 1, plain += name + 1; *full; full += piece(full) + !!full[piece(full)]) {
		size_t n = piece(full);

		if ((n != piece(plain) || strncmp(full, plain, n)) && at < size) {
			at += (size_t)snprintf(out + at, size - at, "%s%.*s", before, (int)n, full);
			before = ",";
		}
		plain += piece(plain) + !!plain[piece(plain)];
	}
}

static gradcomp_status set_plugin(const bench_spec *found, plan_spec *out, gradcomp_error *err)
{
	gradcomp_plugin_kind kind;
	const gradcomp_plugin_info *info;
	gradcomp_spec *s = NULL, *plain = NULL;
	gradcomp_error none;
	gradcomp_status st = gradcomp_plugin_open(found->path, &kind, &info, err);
	if (!st)
		st = gradcomp_spec_parse(info, found->spec, &s, err);
	if (st)
		return st;
	if (strlen(s->text) >= sizeof out->text) {
		st = too_long(s->text, err);
	} else {
		snprintf(out->text, sizeof out->text, "%s", s->text);
		snprintf(out->shown, sizeof out->shown, "%s", s->text);
		if (!gradcomp_spec_parse(info, info->name, &plain, &none))
			shorten(s->text, plain->text, out->shown, sizeof out->shown);
	}
	gradcomp_spec_free(s);
	gradcomp_spec_free(plain);
	return st;
}

static gradcomp_status add(plan_specs *to, const plan_spec *spec, gradcomp_error *err)
{
	for (int i = 0; i < to->n; i++)
		if (plan_same(&to->spec[i], spec))
			return GRADCOMP_OK;
	if (to->n == PLAN_SPECS) {
		err->status = GRADCOMP_ERR_RANGE;
		snprintf(err->text, sizeof err->text, "more than %d SPECs of a kind; name fewer of them", PLAN_SPECS);
		return err->status;
	}
	to->spec[to->n++] = *spec;
	return GRADCOMP_OK;
}

gradcomp_status plan_take_specs(gradcomp_plugin_kind kind, const char *list, const char *option, plan_specs *out,
                                gradcomp_error *err)
{
	bench_spec *found = calloc(PLAN_SPECS, sizeof *found);
	int n = found ? bench_specs_find(kind, list, option, found, PLAN_SPECS, err) : -1;
	gradcomp_status st = GRADCOMP_OK;
	plan_spec spec;
	if (!found) {
		err->status = GRADCOMP_ERR_NOMEM;
		snprintf(err->text, sizeof err->text, "no memory for %d SPECs", PLAN_SPECS);
	}
	for (int i = 0; i < n && !st; i++) {
		st = set_plugin(&found[i], &spec, err);
		if (st && !list) { /* a parameter without a default: it is there by its name */
			snprintf(spec.text, sizeof spec.text, "%s", found[i].spec);
			snprintf(spec.shown, sizeof spec.shown, "%s", found[i].spec);
			st = GRADCOMP_OK;
		}
		if (!st)
			st = add(out, &spec, err);
	}
	free(found);
	return n < 0 ? err->status : st;
}

/* Returns true when the list has the plugin of this name, with whatever parameters. */
static bool has_name(const plan_specs *list, const char *name)
{
	size_t n = strlen(name);
	for (int i = 0; i < list->n; i++)
		if (!strncmp(list->spec[i].text, name, n) && (!list->spec[i].text[n] || list->spec[i].text[n] == ':'))
			return true;
	return false;
}

/* Notes the collectives whose measured calls cannot be used, since nobody is asked for them. */
static gradcomp_status note_calls(plan *p, gradcomp_error *err)
{
	plan_specs *usable = calloc(1, sizeof *usable);
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_error why;
	if (!usable) {
		err->status = GRADCOMP_ERR_NOMEM;
		snprintf(err->text, sizeof err->text, "no memory for a list of collectives");
		return err->status;
	}
	for (uint32_t i = 0; i < p->machine->ncalls && !st; i++) {
		const char *of = p->machine->calls[i].collective;

		if (plan_take_specs(GRADCOMP_KIND_COLLECTIVE, of, "machine file", usable, &why))
			st = plan_skip_note(p, of, why.text, err);
	}
	free(usable);
	return st;
}

gradcomp_status plan_take_curves(plan *p, gradcomp_error *err)
{
	plan_specs *installed = calloc(1, sizeof *installed);
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_error why;
	if (!installed) {
		err->status = GRADCOMP_ERR_NOMEM;
		snprintf(err->text, sizeof err->text, "no memory for a list of compressors");
		return err->status;
	}
	for (uint32_t i = 0; i < p->machine->ncurves && !st; i++) {
		const char *of = p->machine->curves[i].compressor;

		if (plan_take_specs(GRADCOMP_KIND_COMPRESSOR, of, "machine file", &p->compressors, &why))
			st = plan_skip_note(p, of, why.text, err);
	}
	if (!st)
		st = plan_take_specs(GRADCOMP_KIND_COMPRESSOR, NULL, "", installed, err);
	for (int i = 0; i < installed->n && !st; i++)
		if (!has_name(&p->compressors, installed->spec[i].shown))
			st = plan_skip_note(p, installed->spec[i].shown, "no curve in the machine file", err);
	free(installed);
	return st ? st : note_calls(p, err);
}

gradcomp_status plan_take_schedules(const char *list, plan_specs *out, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	const char *at = list ? list : schedules, *item;
	plan_spec s;
	size_t n;
	while (!st && (item = spec_list_next(&at, &n))) {
		if (!n || n >= sizeof s.text)
			break;
		snprintf(s.text, sizeof s.text, "%.*s", (int)n, item);
		snprintf(s.shown, sizeof s.shown, "%.*s", (int)n, item);
		st = add(out, &s, err);
	}
	if (!st && (item || !out->n)) {
		st = err->status = GRADCOMP_ERR_INVALID;
		snprintf(err->text, sizeof err->text, "--schedules: '%.60s' is no list; write SPEC,SPEC", list);
	}
	return st;
}
