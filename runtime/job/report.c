#include "job/report.h"

#include "base/outfile.h"
#include "job/report_internal.h"
#include "base/json.h"

#include <string.h>
#include <time.h>

/* Room taken at the start: a report of some ten thousand tensors. */
#define REPORT_ROOM (1 << 20)

gradcomp_status report_open(const char *path, report **out, gradcomp_error *err)
{
	return outfile_open_job("report", path, REPORT_ROOM, out, err);
}

void report_abandon(report *r)
{
	outfile_abandon(r);
}

gradcomp_status report_close(report *r, const report_job *job, gradcomp_error *err)
{
	report_write(outfile_stream(r), job);
	return outfile_close(r, err);
}

#define REPORT_SCHEMA 1

/* dense / wire bytes; 0 when nothing was sent. */
static double report_ratio(const gradcomp_reducer_stats *s)
{
	return s->wire_bytes > 0 ? s->dense_bytes / s->wire_bytes : 0;
}

/* Returns the share, 0..1, of encode, exchange and decode that the application did not wait for; negative when
 * there was nothing to hide. */
static double report_hidden(const gradcomp_reducer_stats *s)
{
	double work = s->encode_s + s->exchange_s + s->decode_s;
	double hidden = work > 0 ? 1 - s->exposed_s / work : -1;

	return work > 0 && hidden < 0 ? 0 : hidden;
}

/* Finds the reducer that stands for the job: the one that had the most to send. */
static const report_reducer *main_reducer(const report_job *job)
{
	const report_reducer *most = NULL;

	for (uint32_t i = 0; i < job->nreducers; i++)
		if (job->reducers[i].stats.steps &&
		    (!most || job->reducers[i].stats.dense_bytes > most->stats.dense_bytes))
			most = &job->reducers[i];
	return most;
}

/* "ranks" of anything: 1 rank, 2 ranks. */
static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

static void put_traffic(FILE *f, const gradcomp_reducer_stats *s)
{
	double steps = (double)s->steps, ratio = report_ratio(s);

	if (s->wire_bytes <= 0)
		fputs(", nothing sent", f);
	else if (ratio >= 1.05)
		fprintf(f, ", %.1fx fewer bytes (%.2f of %.2f MB a step)", ratio, s->wire_bytes / steps / 1e6,
		        s->dense_bytes / steps / 1e6);
	else
		fprintf(f, ", %.2f MB a step", s->wire_bytes / steps / 1e6);
}

void report_line(const report_job *job, char *out, size_t capacity)
{
	const report_reducer *r = main_reducer(job);
	const gradcomp_reducer_stats *s;
	double steps;
	FILE *f;

	if (!capacity)
		return;
	memset(out, 0, capacity);
	f = fmemopen(out, capacity, "w");
	if (!f)
		return;
	/* A stream of fmemopen keeps the last byte for the final 0. */
	if (!r) {
		fprintf(f, "no gradient was reduced on %d rank%s of %d node%s", job->nranks,
		        plural((uint64_t)job->nranks), job->nnodes, plural((uint64_t)job->nnodes));
		goto done;
	}
	s = &r->stats;
	steps = (double)s->steps;
	fprintf(f, "%s on %d rank%s of %d node%s: %llu step%s", r->asked, r->nranks, plural((uint64_t)r->nranks),
	        job->nnodes, plural((uint64_t)job->nnodes), (unsigned long long)s->steps, plural(s->steps));
	put_traffic(f, s);
	fprintf(f, ", encode %.1f ms, exchange %.1f ms, decode %.1f ms", s->encode_s / steps * 1e3,
	        s->exchange_s / steps * 1e3, s->decode_s / steps * 1e3);
	if (report_hidden(s) >= 0)
		fprintf(f, ", %.0f %% hidden", report_hidden(s) * 100);
	if (r->delay)
		fprintf(f, ", averages up to %u step%s late", r->delay, plural(r->delay));
	if (s->error_mean > 0)
		fprintf(f, ", error %.*f %%", s->error_mean < 0.1, s->error_mean * 100);
	if (s->nonfinite_steps)
		fprintf(f, ", %llu step%s with NaN or Inf", (unsigned long long)s->nonfinite_steps,
		        plural(s->nonfinite_steps));
	if (job->nreducers > 1)
		fprintf(f, "; %u more reducer%s", job->nreducers - 1, plural(job->nreducers - 1));
done:
	if (job->failure)
		fprintf(f, "; failed: %s", job->failure);
	fclose(f);
	out[capacity - 1] = '\0';
}

void report_coder_line(const report_job *job, uint32_t coder, char *out, size_t capacity)
{
	const report_coder *c = &job->coders[coder];
	const gradcomp_coder_stats *s = &c->stats;
	double work = s->convert_s + s->exchange_s;
	FILE *f = capacity ? fmemopen(memset(out, 0, capacity), capacity, "w") : NULL;

	if (!f)
		return;
	fprintf(f, "coder '%s' %s on %d rank%s:", c->name, c->asked, c->nranks, plural((uint64_t)c->nranks));
	if (s->reduce_scatters || !s->all_gathers)
		fprintf(f, " %llu reduce-scatter%s", (unsigned long long)s->reduce_scatters,
		        plural(s->reduce_scatters));
	if (s->all_gathers)
		fprintf(f, "%s %llu all-gather%s", s->reduce_scatters ? "," : "", (unsigned long long)s->all_gathers,
		        plural(s->all_gathers));
	if (s->wire_bytes > 0 && s->dense_bytes >= 1.05 * s->wire_bytes)
		fprintf(f, ", %.1fx fewer bytes (%.2f of %.2f MB)", s->dense_bytes / s->wire_bytes, s->wire_bytes / 1e6,
		        s->dense_bytes / 1e6);
	else
		fprintf(f, ", %.2f MB", s->wire_bytes / 1e6);
	fprintf(f, ", convert %.1f ms, exchange %.1f ms", s->convert_s * 1e3, s->exchange_s * 1e3);
	if (work > 0)
		fprintf(f, ", %.0f %% hidden", s->exposed_s < work ? 100 * (1 - s->exposed_s / work) : 0);
	if (s->nonfinite)
		fprintf(f, ", %llu call%s with NaN or Inf", (unsigned long long)s->nonfinite, plural(s->nonfinite));
	if (coder + 1 == REPORT_CODER_LINES && job->ncoders > REPORT_CODER_LINES)
		fprintf(f, "; %u more coder%s", job->ncoders - REPORT_CODER_LINES,
		        plural(job->ncoders - REPORT_CODER_LINES));
	fclose(f);
	out[capacity - 1] = '\0';
}

/* A share that may not have been measured. */
static void write_share(jsonw *j, const char *key, double share, int measured)
{
	if (measured)
		jsonw_float(j, key, share);
	else
		jsonw_null(j, key);
}

static void write_auto(jsonw *j, const report_auto *a)
{
	jsonw_object(j, "auto");
	jsonw_string(j, "decision", a->decision);
	jsonw_string(j, "reason", a->why);
	write_share(j, "exposed_s", a->exposed, a->exposed > 0);
	jsonw_array(j, "candidates");
	for (uint32_t i = 0; i < a->ncandidates; i++) {
		jsonw_object(j, NULL);
		jsonw_string(j, "compressor", a->candidates[i].spec);
		jsonw_bool(j, "left_out", a->candidates[i].left_out);
		write_share(j, "predicted_s", a->candidates[i].predicted, a->candidates[i].predicted > 0);
		write_share(j, "measured_s", a->candidates[i].measured, a->candidates[i].measured > 0);
		jsonw_end(j);
	}
	jsonw_end(j);
	jsonw_array(j, "switches");
	for (uint32_t i = 0; i < a->nswitches; i++) {
		jsonw_object(j, NULL);
		jsonw_uint(j, "step", a->switches[i].step);
		jsonw_string(j, "to", a->switches[i].to);
		jsonw_string(j, "reason", a->switches[i].why);
		jsonw_end(j);
	}
	jsonw_end(j);
	jsonw_end(j);
}

static void write_line(jsonw *j, const char *key, double a, double b)
{
	jsonw_object(j, key);
	jsonw_float(j, "a", a);
	jsonw_float(j, "b", b);
	jsonw_end(j);
}

static void write_schedule(jsonw *j, const report_schedule *s)
{
	jsonw_object(j, "schedule");
	jsonw_string(j, "asked", s->asked);
	jsonw_string(j, "plan", s->plan);
	jsonw_string(j, "fallback", s->fallback);
	jsonw_uint(j, "plans", s->plans);
	jsonw_uint(j, "lag", s->lag);
	jsonw_array(j, "buckets");
	for (uint32_t b = 0; b < s->nbuckets; b++) {
		jsonw_object(j, NULL);
		jsonw_uint(j, "tensors", s->buckets[b].tensors);
		jsonw_uint(j, "numel", s->buckets[b].numel);
		jsonw_uint(j, "position", s->buckets[b].position);
		jsonw_end(j);
	}
	jsonw_end(j);
	if (s->measured) {
		write_line(j, "exchange", s->exchange_a, s->exchange_b);
		write_line(j, "encode", s->encode_a, s->encode_b);
		write_line(j, "decode", s->decode_a, s->decode_b);
	}
	write_share(j, "predicted_s", s->predicted, s->predicted > 0);
	write_share(j, "predicted_exposed_s", s->predicted_exposed, s->predicted > 0);
	write_share(j, "predicted_fixed_s", s->fixed, s->fixed > 0);
	write_share(j, "step_s", s->step, s->step > 0);
	jsonw_end(j);
}

static void write_reducer(jsonw *j, const report_reducer *r)
{
	const gradcomp_reducer_stats *s = &r->stats;
	double hidden = report_hidden(s);

	jsonw_object(j, NULL);
	jsonw_string(j, "asked", r->asked);
	jsonw_string(j, "compressor", r->compressor);
	jsonw_string(j, "collective", r->collective);
	jsonw_int(j, "ranks", r->nranks);
	jsonw_uint(j, "buckets", s->buckets);
	jsonw_uint(j, "delay", r->delay);
	jsonw_uint(j, "steps", s->steps);
	jsonw_uint(j, "nonfinite_steps", s->nonfinite_steps);
	jsonw_float(j, "dense_bytes", s->dense_bytes);
	jsonw_float(j, "wire_bytes", s->wire_bytes);
	write_share(j, "ratio", report_ratio(s), report_ratio(s) > 0);
	jsonw_float(j, "encode_s", s->encode_s);
	jsonw_float(j, "exchange_s", s->exchange_s);
	jsonw_float(j, "decode_s", s->decode_s);
	jsonw_float(j, "exposed_s", s->exposed_s);
	write_share(j, "hidden", hidden, hidden >= 0);
	write_share(j, "error_mean", s->error_mean, s->error_steps > 0);
	write_share(j, "error_last", s->error_last, s->error_steps > 0);
	if (r->tuner)
		write_auto(j, r->tuner);
	if (r->schedule)
		write_schedule(j, r->schedule);
	jsonw_array(j, "tensors");
	for (uint32_t i = 0; i < r->ntensors; i++) {
		jsonw_object(j, NULL);
		jsonw_string(j, "name", r->tensors[i].name);
		jsonw_uint(j, "numel", r->tensors[i].numel);
		jsonw_string(j, "choice", r->tensors[i].choice);
		write_share(j, "error", r->tensors[i].error, r->tensors[i].error >= 0);
		jsonw_end(j);
	}
	jsonw_end(j);
	jsonw_end(j);
}

static void write_coder(jsonw *j, const report_coder *c)
{
	const gradcomp_coder_stats *s = &c->stats;

	jsonw_object(j, NULL);
	jsonw_string(j, "name", c->name);
	jsonw_string(j, "asked", c->asked);
	jsonw_string(j, "compressor", c->compressor);
	jsonw_string(j, "collective", c->collective);
	jsonw_int(j, "ranks", c->nranks);
	jsonw_uint(j, "reduce_scatters", s->reduce_scatters);
	jsonw_uint(j, "all_gathers", s->all_gathers);
	jsonw_uint(j, "nonfinite", s->nonfinite);
	jsonw_float(j, "dense_bytes", s->dense_bytes);
	jsonw_float(j, "wire_bytes", s->wire_bytes);
	write_share(j, "ratio", s->wire_bytes > 0 ? s->dense_bytes / s->wire_bytes : 0, s->wire_bytes > 0);
	jsonw_float(j, "convert_s", s->convert_s);
	jsonw_float(j, "exchange_s", s->exchange_s);
	jsonw_float(j, "exposed_s", s->exposed_s);
	jsonw_uint(j, "slots", s->slots);
	jsonw_uint(j, "residual_bytes", s->residual_bytes);
	jsonw_end(j);
}

static void write_link_map(jsonw *j, const report_job *job)
{
	jsonw_array(j, "link_kinds");
	for (uint32_t i = 0; i < job->nlink_kinds; i++) {
		jsonw_object(j, NULL);
		jsonw_string(j, "transport", job->link_kinds[i].transport);
		jsonw_uint(j, "pairs", job->link_kinds[i].pairs);
		jsonw_string(j, "why_not", job->link_kinds[i].why_not);
		jsonw_end(j);
	}
	jsonw_end(j);
	jsonw_array(j, "link_map");
	for (int a = 0; job->link_map && a < job->nranks; a++) {
		jsonw_array(j, NULL);
		for (int b = 0; b < job->nranks; b++)
			jsonw_string(j, NULL, job->link_map[a * job->nranks + b]);
		jsonw_end(j);
	}
	jsonw_end(j);
}

static void write_networks(jsonw *j, const report_job *job)
{
	jsonw_array(j, "networks");
	for (uint32_t i = 0; i < job->nnetworks; i++) {
		const network_row *n = &job->networks[i];

		jsonw_object(j, NULL);
		jsonw_string(j, "network", n->name);
		jsonw_string(j, "interface", *n->interface ? n->interface : NULL);
		write_share(j, "driver_mbit", n->claimed, n->claimed > 0);
		write_share(j, "measured_mbit", n->rate, n->measured);
		jsonw_bool(j, "used", n->chosen);
		jsonw_end(j);
	}
	jsonw_end(j);
}

void report_write(FILE *out, const report_job *job)
{
	char when[32] = "";
	time_t now = time(NULL);
	struct tm tm;
	jsonw j;

	if (gmtime_r(&now, &tm))
		strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
	jsonw_start(&j, out);
	jsonw_object(&j, NULL);
	jsonw_int(&j, "schema", REPORT_SCHEMA);
	jsonw_string(&j, "gradcomp", GRADCOMP_VERSION_STRING);
	jsonw_string(&j, "job", job->job_id);
	jsonw_string(&j, "step", job->step_id);
	jsonw_string(&j, "ended", when);
	jsonw_float(&j, "wall_s", job->wall_s);
	jsonw_string(&j, "failure", job->failure);
	jsonw_int(&j, "ranks", job->nranks);
	jsonw_int(&j, "nodes", job->nnodes);
	jsonw_array(&j, "hosts");
	for (int i = 0; job->hosts && i < job->nranks; i++)
		jsonw_string(&j, NULL, job->hosts[i]);
	jsonw_end(&j);
	jsonw_array(&j, "links");
	for (uint32_t i = 0; i < job->nlinks; i++) {
		jsonw_object(&j, NULL);
		jsonw_string(&j, "transport", job->links[i].transport);
		jsonw_uint(&j, "connections", job->links[i].connections);
		jsonw_uint(&j, "sent_bytes", job->links[i].sent);
		jsonw_uint(&j, "received_bytes", job->links[i].received);
		jsonw_end(&j);
	}
	jsonw_end(&j);
	write_link_map(&j, job);
	write_networks(&j, job);
	jsonw_array(&j, "reducers");
	for (uint32_t i = 0; i < job->nreducers; i++)
		write_reducer(&j, &job->reducers[i]);
	jsonw_end(&j);
	jsonw_array(&j, "coders");
	for (uint32_t i = 0; i < job->ncoders; i++)
		write_coder(&j, &job->coders[i]);
	jsonw_end(&j);
	jsonw_end(&j);
	jsonw_finish(&j);
}
