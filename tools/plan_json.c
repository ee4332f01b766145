/* Predictions as JSON. Seconds and bytes, of a rank and step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan.h"

static void put_row(jsonw *j, const char *key, const plan_table *t, const plan_row *row)
{
	json_put_object(j, key);
	json_put_string(j, "compressor", row->compressor->text);
	json_put_string(j, "collective", row->collective->text);
	json_put_string(j, "schedule", row->schedule->text);
	json_put_uint(j, "buckets", row->p.buckets);
	json_put_float(j, "step_s", row->p.step_s);
	json_put_float(j, "least_s", row->p.least_s);
	json_put_float(j, "most_s", row->p.most_s);
	json_put_float(j, "compute_s", row->p.compute_s);
	json_put_float(j, "exposed_s", row->p.exposed_s);
	json_put_float(j, "encode_s", row->p.encode_s);
	json_put_float(j, "exchange_s", row->p.exchange_s);
	json_put_float(j, "decode_s", row->p.decode_s);
	json_put_float(j, "sent_bytes", row->p.sent_bytes);
	json_put_float(j, "node_bytes", row->p.node_bytes);
	json_put_float(j, "speedup_dense", t->dense ? t->dense->p.step_s / row->p.step_s : NAN);
	json_put_float(j, "speedup_half", t->half ? t->half->p.step_s / row->p.step_s : NAN);
	json_put_end(j);
}

/* The sentences, one string each. */
static void put_why(jsonw *j, const plan *p, const plan_table *t)
{
	char *text = NULL, *rest = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	json_put_array(j, "why");
	if (f) {
		plan_explain(p, t, f);
		if (!fclose(f))
			for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
				json_put_string(j, NULL, line);
		free(text);
	}
	json_put_end(j);
}

static void put_link(jsonw *j, const plan_table *t)
{
	const linear *link = &t->machine.level[plan_level(t->nodes)];
	if (!(link->b > 0)) {
		json_put_null(j, "link");
		return;
	}
	json_put_object(j, "link");
	json_put_float(j, "bits_per_s", 8 / link->b);
	json_put_float(j, "message_s", link->a);
	json_put_end(j);
}

static void put_needs(jsonw *j, const plan *p, const plan_table *t)
{
	json_put_float(j, "ideal_s", t->n ? plan_ideal(p, t) : NAN);
	json_put_array(j, "needs");
	for (int i = 0; i < t->nneeds; i++) {
		const plan_need *need = &t->needs[i];

		json_put_object(j, NULL);
		json_put_string(j, "compressor", need->row->compressor->text);
		json_put_float(j, "share", need->share);
		json_put_float(j, "bits_per_s", need->bits);
		json_put_float(j, "message_s", need->message > 0 ? need->message : NAN);
		json_put_end(j);
	}
	json_put_end(j);
}

static void put_classes(jsonw *j, const plan_table *t)
{
	const plan_slowest *s = &t->slowest;
	json_put_object(j, "slowest");
	json_put_float(j, "step_s", s->step);
	json_put_float(j, "alike_s", s->alike);
	json_put_float(j, "cost_s", s->cost);
	json_put_string(j, "by", plan_by_text(s->by));
	json_put_float(j, "computing_s", s->of[PLAN_BY_COMPUTING]);
	json_put_float(j, "link_s", s->of[PLAN_BY_LINK]);
	if (s->by)
		json_put_int(j, "class", s->who);
	else
		json_put_null(j, "class");
	json_put_float(j, "divided_s", s->divided);
	json_put_float(j, "gain_s", s->gain);
	json_put_array(j, "classes");
	for (int i = 0; i < t->nclasses; i++) {
		const plan_class *c = &t->classes[i];

		json_put_object(j, NULL);
		json_put_uint(j, "ranks", c->ranks);
		json_put_float(j, "speed", c->speed);
		json_put_float(j, "bits_per_s", c->link.bits > 0 ? c->link.bits : 8 / t->usual.b);
		json_put_float(j, "share", c->share);
		if (c->samples) {
			json_put_uint(j, "samples", c->samples);
			json_put_uint(j, "with_one_more", c->more);
		}
		json_put_end(j);
	}
	json_put_end(j);
	json_put_end(j);
}

static void put_table(jsonw *j, const plan *p, const plan_table *t)
{
	json_put_object(j, NULL);
	json_put_uint(j, "nodes", t->nodes);
	json_put_uint(j, "ranks_per_node", p->ranks_per_node);
	put_link(j, t);
	put_why(j, p, t);
	if (t->best)
		put_row(j, "best", t, t->best);
	else
		json_put_null(j, "best");
	if (p->need > 0)
		put_needs(j, p, t);
	if (t->nclasses && t->best)
		put_classes(j, t);
	json_put_array(j, "plans");
	for (int i = 0; i < t->n; i++)
		put_row(j, NULL, t, &t->rows[i]);
	json_put_end(j);
	json_put_end(j);
}

void plan_json(const plan *p, FILE *out)
{
	jsonw j;
	json_put_start(&j, out);
	json_put_object(&j, NULL);
	json_put_object(&j, "model");
	json_put_string(&j, "name", p->model->name);
	json_put_uint(&j, "tensors", p->model->ntensors);
	json_put_float(&j, "parameters", plan_parameters(p->model));
	json_put_uint(&j, "batch", p->model->batch);
	json_put_end(&j);
	json_put_object(&j, "machine");
	json_put_string(&j, "name", p->machine->name);
	json_put_uint(&j, "nodes", p->machine->nodes);
	json_put_uint(&j, "ranks_per_node", p->machine->ranks_per_node);
	json_put_end(&j);
	json_put_string(&j, "dense", p->dense.text);
	if (*p->half.text)
		json_put_string(&j, "half", p->half.text);
	else
		json_put_null(&j, "half");
	if (p->need > 0)
		json_put_float(&j, "need", p->need);
	json_put_array(&j, "tables");
	for (int n = 0; n < p->ntables; n++)
		put_table(&j, p, &p->tables[n]);
	json_put_end(&j);
	json_put_array(&j, "left_out");
	for (int i = 0; i < p->nskips; i++) {
		json_put_object(&j, NULL);
		json_put_string(&j, "what", p->skips[i].what);
		json_put_string(&j, "why", p->skips[i].why);
		json_put_end(&j);
	}
	json_put_end(&j);
	json_put_end(&j);
	json_put_finish(&j);
}
