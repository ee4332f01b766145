/* Predictions as JSON. Seconds and bytes, of a rank and step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan.h"

static void put_row(jsonw *j, const char *key, const plan_table *t, const plan_row *row)
{
	jsonw_object(j, key);
	jsonw_string(j, "compressor", row->compressor->text);
	jsonw_string(j, "collective", row->collective->text);
	jsonw_string(j, "schedule", row->schedule->text);
	jsonw_uint(j, "buckets", row->p.buckets);
	jsonw_float(j, "step_s", row->p.step_s);
	jsonw_float(j, "least_s", row->p.least_s);
	jsonw_float(j, "most_s", row->p.most_s);
	jsonw_float(j, "compute_s", row->p.compute_s);
	jsonw_float(j, "exposed_s", row->p.exposed_s);
	jsonw_float(j, "encode_s", row->p.encode_s);
	jsonw_float(j, "exchange_s", row->p.exchange_s);
	jsonw_float(j, "decode_s", row->p.decode_s);
	jsonw_float(j, "sent_bytes", row->p.sent_bytes);
	jsonw_float(j, "node_bytes", row->p.node_bytes);
	jsonw_float(j, "speedup_dense", t->dense ? t->dense->p.step_s / row->p.step_s : NAN);
	jsonw_float(j, "speedup_half", t->half ? t->half->p.step_s / row->p.step_s : NAN);
	jsonw_end(j);
}

/* The sentences, one string each. */
static void put_why(jsonw *j, const plan *p, const plan_table *t)
{
	char *text = NULL, *rest = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	jsonw_array(j, "why");
	if (f) {
		plan_explain(p, t, f);
		if (!fclose(f))
			for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
				jsonw_string(j, NULL, line);
		free(text);
	}
	jsonw_end(j);
}

static void put_table(jsonw *j, const plan *p, const plan_table *t)
{
	jsonw_object(j, NULL);
	jsonw_uint(j, "nodes", t->nodes);
	jsonw_uint(j, "ranks_per_node", p->ranks_per_node);
	put_why(j, p, t);
	if (t->best)
		put_row(j, "best", t, t->best);
	else
		jsonw_null(j, "best");
	jsonw_array(j, "plans");
	for (int i = 0; i < t->n; i++)
		put_row(j, NULL, t, &t->rows[i]);
	jsonw_end(j);
	jsonw_end(j);
}

void plan_json(const plan *p, FILE *out)
{
	jsonw j;

	jsonw_start(&j, out);
	jsonw_object(&j, NULL);
	jsonw_object(&j, "model");
	jsonw_string(&j, "name", p->model->name);
	jsonw_uint(&j, "tensors", p->model->ntensors);
	jsonw_float(&j, "parameters", plan_parameters(p->model));
	jsonw_uint(&j, "batch", p->model->batch);
	jsonw_end(&j);
	jsonw_object(&j, "machine");
	jsonw_string(&j, "name", p->machine->name);
	jsonw_uint(&j, "nodes", p->machine->nodes);
	jsonw_uint(&j, "ranks_per_node", p->machine->ranks_per_node);
	jsonw_end(&j);
	jsonw_string(&j, "dense", p->dense.text);
	if (*p->half.text)
		jsonw_string(&j, "half", p->half.text);
	else
		jsonw_null(&j, "half");
	jsonw_array(&j, "tables");
	for (int n = 0; n < p->nnodes; n++)
		put_table(&j, p, &p->tables[n]);
	jsonw_end(&j);
	jsonw_array(&j, "left_out");
	for (int i = 0; i < p->nskips; i++) {
		jsonw_object(&j, NULL);
		jsonw_string(&j, "what", p->skips[i].what);
		jsonw_string(&j, "why", p->skips[i].why);
		jsonw_end(&j);
	}
	jsonw_end(&j);
	jsonw_end(&j);
	jsonw_finish(&j);
}
