/* config.json of Hugging Face transformers. What parameters follow from it is described for each family
 * (its model_type) in MODELS/families/TYPE.family, an INI file:
 *
 *     [keys]
 *     kv = num_key_value_heads or heads
 *     [tensors]
 *     model.layers.*.self_attn.k_proj.weight = layer kv*head,hidden
 *     lm_head.weight = end vocab,hidden unless tied
 *
 * An expression is a sum of products and quotients of numbers and names; a name is a key of config.json, or one of
 * [keys] above. `layers`, `hidden` and `heads` must be among these; `kv`, `experts`, `active`, `dense_layers` and
 * `positions` have a meaning too. A tensor's first word says where it is: */
#ifdef HAVE_JANSSON
#include "tools/plan_import.h"

#include <ctype.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/record_io.h"
#include "gradcomp/stage.h"
#include "tools/plan.h"

typedef enum part {
	EMBEDDING, /* looked up, not multiplied by; before the layers */
	LAYER,     /* in every layer, whose number stands for the '*' */
	DENSE,     /* in the first `dense_layers` layers */
	SPARSE,    /* in the others */
	EXPERT,    /* SPARSE for each expert, whose number stands for the second '*' */
	END,       /* behind the layers */
	AGAIN      /* no tensor of its own: one that is multiplied by behind the layers, too */
} part;

static const char *const part_names[] = {"embedding", "layer", "dense", "sparse", "expert", "end", "again"};

enum { ROWS = 64, ROW = 160, KEYS = 32, SIZE_MOST = 1 << 30 };

typedef struct row {
	part part;
	char name[ROW], dims[ROW], condition[64];
	bool unless;
} row;

typedef struct family {
	char key[KEYS][64], value[KEYS][ROW];
	int nkeys;
	row row[ROWS];
	int nrows;
	bool in_tensors;
} family;

static void family_section(inifile *f, const char *name, size_t n)
{
	family *of = f->ctx;
	of->in_tensors = n == 7 && !strncmp(name, "tensors", n);
	if (!of->in_tensors && (n != 4 || strncmp(name, "keys", n)))
		inifile_fail(f, "unknown section [%.*s]; there are [keys], [tensors]", (int)n, name);
}

static void family_key(inifile *f, const char *section, const char *key, const char *value)
{
	family *of = f->ctx;
	row *r = &of->row[of->nrows];
	char text[3 * ROW], *w[4];
	int n;
	(void)section;
	if (strlen(key) >= sizeof *of->key || strlen(value) >= ROW || of->nkeys == KEYS || of->nrows == ROWS) {
		inifile_fail(f, "'%s' is too long, or there are too many lines", key);
		return;
	}
	if (!of->in_tensors) {
		snprintf(of->key[of->nkeys], sizeof *of->key, "%s", key);
		snprintf(of->value[of->nkeys++], sizeof *of->value, "%s", value);
		return;
	}
	snprintf(text, sizeof text, "%s", value);
	n = record_io_words(text, w, 4);
	*r = (row){.part = EMBEDDING};
	while (n > 0 && r->part <= AGAIN && strcmp(w[0], part_names[r->part]))
		r->part++;
	if ((n != 2 && n != 4) || r->part > AGAIN || (n == 4 && strcmp(w[2], "if") && strcmp(w[2], "unless"))) {
		inifile_fail(f,
		             "'%s' is no tensor; write embedding, layer, dense, sparse, expert, end or again, then "
		             "DIM,DIM, "
		             "then nothing, if KEY or unless KEY",
		             value);
		return;
	}
	snprintf(r->name, sizeof r->name, "%s", key);
	snprintf(r->dims, sizeof r->dims, "%s", w[1]);
	r->unless = n == 4 && *w[2] == 'u';
	snprintf(r->condition, sizeof r->condition, "%s", n == 4 ? w[3] : "");
	of->nrows++;
}

static gradcomp_status no_such_family(const char *type, gradcomp_error *err)
{
	char pattern[4200], shown[80];
	size_t at;
	glob_t found;
	at = (size_t)snprintf(err->text, sizeof err->text,
	                      "model_type '%s' has no description; give its safetensors, or a model file. There are: ",
	                      gradcomp_printable(type, shown, sizeof shown));
	err->status = GRADCOMP_ERR_UNSUPPORTED;
	snprintf(pattern, sizeof pattern, "%s/families/*.family", plan_models_folder());
	if (glob(pattern, 0, NULL, &found))
		return err->status;
	for (size_t i = 0; i < found.gl_pathc && at < sizeof err->text; i++) {
		const char *name = strrchr(found.gl_pathv[i], '/') + 1;

		at += (size_t)snprintf(err->text + at, sizeof err->text - at, "%s%.*s", i ? ", " : "",
		                       (int)strcspn(name, "."), name);
	}
	globfree(&found);
	return err->status;
}

static gradcomp_status family_read(const char *type, family *out, gradcomp_error *err)
{
	inifile f = {.err = err, .section = family_section, .key = family_key, .ctx = out};
	char path[4200];
	gradcomp_status st;
	*out = (family){.nkeys = 0};
	if (!*type || type[strspn(type, "abcdefghijklmnopqrstuvwxyz0123456789_-")])
		return no_such_family(type, err);
	snprintf(path, sizeof path, "%s/families/%s.family", plan_models_folder(), type);
	st = record_io_read(&f, path);
	return st == GRADCOMP_ERR_NOTFOUND ? no_such_family(type, err) : st;
}

/* The functions below say what it comes to with a configuration. */

typedef struct sizes {
	const json_t *config;
	const family *of;
	plan_import *to;
	uint64_t layers, hidden, heads, experts, active, dense_layers, positions;
} sizes;

static gradcomp_status no_number(const sizes *s, const char *name, const char *what)
{
	char shown[80];
	return error_set(s->to->err, GRADCOMP_ERR_INVALID, "model %s: '%s' %s", s->to->path,
	                 gradcomp_printable(name, shown, sizeof shown), what);
}

static gradcomp_status evaluate(const sizes *s, const char *text, int before, uint64_t *out);

/* A name: true with its value, if it has one; the status tells an error. */
static bool look_up(const sizes *s, const char *name, int before, uint64_t *out, gradcomp_status *st)
{
	const json_t *value = json_object_get(s->config, name);
	*st = GRADCOMP_OK;
	if (json_is_boolean(value)) {
		*out = (uint64_t)json_is_true(value);
		return true;
	}
	if (json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= SIZE_MOST) {
		*out = (uint64_t)json_integer_value(value);
		return true;
	}
	if (value && !json_is_null(value)) {
		*st = no_number(s, name, "is no whole number from 0 to 2^30");
		return false;
	}
	for (int i = 0; i < before; i++) {
		char text[ROW], *rest = text;

		if (strcmp(s->of->key[i], name))
			continue;
		/* The first alternative whose names are all there. */
		snprintf(text, sizeof text, "%s", s->of->value[i]);
		while (rest) {
			char *next = strstr(rest, " or ");

			if (next) {
				*next = '\0';
				next += 4;
			}
			*st = evaluate(s, rest, i, out);
			if (*st != GRADCOMP_ERR_NOTFOUND)
				return !*st;
			rest = next;
		}
		return false;
	}
	return false;
}

static gradcomp_status factor(const sizes *s, const char **text, int before, uint64_t *out)
{
	const char *p = *text;
	char name[64];
	size_t n = 0;
	gradcomp_status st;
	while (n + 1 < sizeof name && (isalnum((unsigned char)p[n]) || p[n] == '_'))
		n++;
	snprintf(name, sizeof name, "%.*s", (int)n, p);
	*text = p + n;
	if (!n)
		return no_number(s, p, "is no expression");
	if (name[strspn(name, "0123456789")]) {
		if (!look_up(s, name, before, out, &st) && !st)
			st = error_set(s->to->err, GRADCOMP_ERR_NOTFOUND, "model %s: the configuration has no '%s'",
			               s->to->path, name);
		return st;
	}
	*out = strtoul(name, NULL, 10);
	return GRADCOMP_OK;
}

static gradcomp_status evaluate(const sizes *s, const char *text, int before, uint64_t *out)
{
	uint64_t sum = 0, product = 0, value;
	char operation = '+';
	const char *p = text;
	for (;;) {
		gradcomp_status st = factor(s, &p, before, &value);

		if (st)
			return st;
		if (operation == '+') {
			sum += product;
			product = value;
		} else if (operation == '*') {
			if (value && product > ((uint64_t)1 << 48) / value)
				return no_number(s, text, "is more than 2^48");
			product *= value;
		} else {
			if (!value || product % value)
				return no_number(s, text, "cannot be divided");
			product /= value;
		}
		if (!*p) {
			*out = sum + product;
			return GRADCOMP_OK;
		}
		operation = *p++;
		if (!strchr("+*/", operation))
			return no_number(s, text, "is no expression");
	}
}

static gradcomp_status size_of(const sizes *s, const char *name, bool needed, uint64_t least, uint64_t *out)
{
	gradcomp_status st = GRADCOMP_OK;
	*out = 0;
	if (!look_up(s, name, s->of->nkeys, out, &st) && !st && needed)
		st = error_set(s->to->err, GRADCOMP_ERR_INVALID, "model %s: the configuration does not say '%s' (%s)",
		               s->to->path, name, "model files can be given instead");
	if (!st && needed && *out < least)
		st = no_number(s, name, "is 0");
	return st == GRADCOMP_ERR_NOTFOUND && !needed ? GRADCOMP_OK : st;
}

/* *wanted: the row's condition lets it be. */
static gradcomp_status is_wanted(const sizes *s, const row *r, bool *wanted)
{
	uint64_t value = 0;
	gradcomp_status st = *r->condition ? evaluate(s, r->condition, s->of->nkeys, &value) : GRADCOMP_OK;
	*wanted = !*r->condition || (value != 0) != r->unless;
	return st;
}

static gradcomp_status row_dims(const sizes *s, const row *r, uint64_t *dims, uint32_t *ndim, double *numel)
{
	char text[ROW], *rest = NULL;
	gradcomp_status st = GRADCOMP_OK;
	*ndim = 0;
	*numel = 1;
	snprintf(text, sizeof text, "%s", r->dims);
	for (char *w = strtok_r(text, ",", &rest); w && !st; w = strtok_r(NULL, ",", &rest)) {
		if (*ndim == PLAN_DIMS)
			return no_number(s, r->dims, "has too many dimensions");
		st = evaluate(s, w, s->of->nkeys, &dims[*ndim]);
		if (!st)
			*numel *= (double)dims[(*ndim)++];
	}
	return st;
}

/* `layer` and `expert` in place of the stars. */
static void full_name(const row *r, uint64_t layer, uint64_t expert, char *out, size_t room)
{
	size_t at = 0;
	int stars = 0;
	for (const char *c = r->name; *c && at + 24 < room; c++) {
		if (*c == '*')
			at += (size_t)snprintf(out + at, room - at, "%" PRIu64, stars++ ? expert : layer);
		else
			out[at++] = *c;
	}
	out[at] = '\0';
}

/* One tensor; what its matrix keeps of a token for the backward pass is added to the layer. */
static gradcomp_status add(const sizes *s, const row *r, uint64_t layer, uint64_t expert)
{
	model_layer *in = &s->to->m->layers[s->to->m->nlayers - 1];
	uint64_t dims[PLAN_DIMS];
	uint32_t ndim;
	double numel, share = r->part == EXPERT ? (double)s->active / (double)s->experts : 1, operations;
	char name[ROW + 64];
	bool wanted;
	gradcomp_status st = is_wanted(s, r, &wanted);
	if (st || !wanted)
		return st;
	st = row_dims(s, r, dims, &ndim, &numel);
	if (st)
		return st;
	operations = ndim < 2 || r->part == EMBEDDING ? 0 : 2 * numel * share * (double)s->to->tokens;
	if (r->part != EMBEDDING && r->part < END && ndim > 1)
		in->kept[1] += sizeof(float) * numel * share / (double)s->hidden * (double)s->to->tokens;
	if (r->part == AGAIN) {
		model_tensor *last = &s->to->m->tensors[s->to->m->ntensors - 1];

		last->forward += operations / PLAN_RATE;
		last->backward += 2 * operations / PLAN_RATE;
		return GRADCOMP_OK;
	}
	full_name(r, layer, expert, name, sizeof name);
	return plan_import_tensor(s->to, name, dims, ndim, operations);
}

static bool is_in(const sizes *s, const row *r, uint64_t layer)
{
	return r->part == LAYER || (r->part == DENSE && layer < s->dense_layers) ||
	       ((r->part == SPARSE || r->part == EXPERT) && layer >= s->dense_layers);
}

/* Rows of experts that follow each other are an expert's. */
static gradcomp_status add_layer(const sizes *s, uint64_t layer)
{
	const row *r = s->of->row, *end = r + s->of->nrows;
	gradcomp_status st = GRADCOMP_OK;
	while (r < end && !st) {
		const row *next = r + 1;

		while (r->part == EXPERT && next < end && next->part == EXPERT)
			next++;
		for (uint64_t x = 0; x < (r->part == EXPERT ? s->experts : 1) && !st && is_in(s, r, layer); x++)
			for (const row *one = r; one < next && !st; one++)
				st = add(s, one, layer, x);
		r = next;
	}
	return st;
}

static gradcomp_status add_parts(const sizes *s, part first, part last)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int i = 0; i < s->of->nrows && !st; i++)
		if (s->of->row[i].part >= first && s->of->row[i].part <= last)
			st = add(s, &s->of->row[i], 0, 0);
	return st;
}

/* Follows Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022, section 4, with
 * numbers of 4 bytes: the norms' inputs are on all ranks of a tensor-parallel group, what comes out of matrices is
 * divided. */
static void set_layer(const sizes *s, double kept, uint32_t reduces)
{
	model_layer *in = &s->to->m->layers[s->to->m->nlayers - 1];
	const double all = (double)s->to->tokens * (double)s->hidden;
	in->output = 4 * all;
	in->kept[0] = kept * all;
	in->reduces = reduces;
}

static gradcomp_status add_all(const sizes *s)
{
	const double tokens = (double)s->to->tokens;
	const double length = s->positions && (double)s->positions < tokens ? (double)s->positions : tokens;
	gradcomp_status st = plan_import_layer(s->to, "embeddings");
	if (!st)
		st = add_parts(s, EMBEDDING, EMBEDDING);
	if (!st)
		set_layer(s, 1, 1);
	for (uint64_t i = 0; i < s->layers && !st; i++) {
		char name[40];
		model_tensor *first;
		uint32_t at = s->to->m->ntensors;

		snprintf(name, sizeof name, "layer%" PRIu64, i);
		st = plan_import_layer(s->to, name);
		if (!st)
			st = add_layer(s, i);
		if (st)
			return st;
		if (at == s->to->m->ntensors)
			return no_number(s, "layers", "have no tensors");
		set_layer(s, 18, 2);
		s->to->m->layers[s->to->m->nlayers - 1].kept[1] += 9 * (double)s->heads * tokens * length;
		/* Attention multiplies without a tensor of its own. */
		first = &s->to->m->tensors[at];
		first->forward += 4 * tokens * length * (double)s->hidden / PLAN_RATE;
		first->backward += 8 * tokens * length * (double)s->hidden / PLAN_RATE;
	}
	if (!st)
		st = plan_import_layer(s->to, "end");
	if (!st)
		st = add_parts(s, END, AGAIN);
	if (!st && s->to->m->layers[s->to->m->nlayers - 1].first == s->to->m->ntensors)
		free(s->to->m->layers[--s->to->m->nlayers].name); /* all of it is registered before the layers */
	else if (!st)
		set_layer(s, 8, 1);
	return st;
}

/* The part that describes the text model, where there are several. */
static const json_t *text_config(const json_t *config)
{
	const json_t *text = json_object_get(config, "text_config");
	return json_is_object(text) ? text : config;
}

gradcomp_status plan_config(plan_import *to, const json_t *config)
{
	family *of = calloc(1, sizeof *of);
	sizes s = {.config = text_config(config), .of = of, .to = to};
	const char *type = json_string_value(json_object_get(s.config, "model_type"));
	struct {
		const char *name;
		bool needed;
		uint64_t least, *out;
	} needs[] = {
		{"layers", true, 1, &s.layers},
		{"hidden", true, 1, &s.hidden},
		{"heads", true, 1, &s.heads},
		{"positions", false, 0, &s.positions},
		{"dense_layers", false, 0, &s.dense_layers},
	};
	bool sparse = false;
	gradcomp_status st = GRADCOMP_OK;

	if (!of)
		return error_set(to->err, GRADCOMP_ERR_NOMEM, "no memory for a model");
	if (!type)
		st = error_set(to->err, GRADCOMP_ERR_INVALID,
		               "model %s: this is no configuration of a model: it has no model_type", to->path);
	if (!st)
		st = family_read(type, of, to->err);
	for (size_t i = 0; i < sizeof needs / sizeof *needs && !st; i++)
		st = size_of(&s, needs[i].name, needs[i].needed, needs[i].least, needs[i].out);
	for (int i = 0; i < of->nrows && !st; i++)
		sparse |= of->row[i].part == EXPERT;
	if (!st && sparse)
		st = size_of(&s, "experts", true, 1, &s.experts);
	if (!st && sparse)
		st = size_of(&s, "active", true, 1, &s.active);
	if (!st && s.active > s.experts)
		st = no_number(&s, "num_experts_per_tok", "is more than there are experts");
	if (!st)
		st = add_all(&s);
	if (st == GRADCOMP_ERR_NOTFOUND)
		st = to->err->status = GRADCOMP_ERR_INVALID;
	free(of);
	return st;
}

double plan_config_active(const json_t *config)
{
	static const char *const counts[] = {"num_local_experts", "num_experts", "n_routed_experts"};
	const json_t *of = text_config(config);
	const double active = json_number_value(json_object_get(of, "num_experts_per_tok"));
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
		const double all = json_number_value(json_object_get(of, counts[i]));

		if (all > 0 && active > 0 && active <= all)
			return active / all;
	}
	return -1;
}
#endif
