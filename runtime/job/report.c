#include "job/report.h"

#include "base/outfile.h"
#include "job/report_internal.h"
#include "base/json.h"

#include <math.h>
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
#define TIMES_RANKS 1024 /* larger jobs' reports have no row a rank */

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
	if (r->sums_s > 0 && !r->delay && s->exposed_s / steps > r->sums_s)
		fprintf(f, ", waits %.1f ms where all sums of cast:type=bf16 take %.1f", s->exposed_s / steps * 1e3,
		        r->sums_s * 1e3);
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

void report_slow_line(const report_job *job, char *out, size_t capacity)
{
	*out = '\0';
	if (job->slow.kind)
		slow_rank_line(&job->slow, job->slow_host ? job->slow_host : "?", out, capacity);
}

/* A share that may not have been measured. */
static void write_share(jsonw *j, const char *key, double share, int measured)
{
	if (measured)
		json_put_float(j, key, share);
	else
		json_put_null(j, key);
}

static void write_auto(jsonw *j, const report_auto *a)
{
	json_put_object(j, "auto");
	json_put_string(j, "decision", a->decision);
	json_put_string(j, "reason", a->why);
	write_share(j, "exposed_s", a->exposed, a->exposed > 0);
	json_put_array(j, "candidates");
	for (uint32_t i = 0; i < a->ncandidates; i++) {
		json_put_object(j, NULL);
		json_put_string(j, "compressor", a->candidates[i].spec);
		json_put_bool(j, "left_out", a->candidates[i].left_out);
		write_share(j, "predicted_s", a->candidates[i].predicted, a->candidates[i].predicted > 0);
		write_share(j, "measured_s", a->candidates[i].measured, a->candidates[i].measured > 0);
		json_put_end(j);
	}
	json_put_end(j);
	json_put_array(j, "switches");
	for (uint32_t i = 0; i < a->nswitches; i++) {
		json_put_object(j, NULL);
		json_put_uint(j, "step", a->switches[i].step);
		json_put_string(j, "to", a->switches[i].to);
		json_put_string(j, "reason", a->switches[i].why);
		json_put_end(j);
	}
	json_put_end(j);
	json_put_end(j);
}

static void write_line(jsonw *j, const char *key, double a, double b)
{
	json_put_object(j, key);
	json_put_float(j, "a", a);
	json_put_float(j, "b", b);
	json_put_end(j);
}

static void write_schedule(jsonw *j, const report_schedule *s)
{
	json_put_object(j, "schedule");
	json_put_string(j, "asked", s->asked);
	json_put_string(j, "plan", s->plan);
	json_put_string(j, "fallback", s->fallback);
	json_put_uint(j, "plans", s->plans);
	json_put_uint(j, "lag", s->lag);
	json_put_array(j, "buckets");
	for (uint32_t b = 0; b < s->nbuckets; b++) {
		json_put_object(j, NULL);
		json_put_uint(j, "tensors", s->buckets[b].tensors);
		json_put_uint(j, "numel", s->buckets[b].numel);
		json_put_uint(j, "position", s->buckets[b].position);
		json_put_end(j);
	}
	json_put_end(j);
	if (s->measured) {
		write_line(j, "exchange", s->exchange_a, s->exchange_b);
		write_line(j, "encode", s->encode_a, s->encode_b);
		write_line(j, "decode", s->decode_a, s->decode_b);
	}
	write_share(j, "predicted_s", s->predicted, s->predicted > 0);
	write_share(j, "predicted_exposed_s", s->predicted_exposed, s->predicted > 0);
	write_share(j, "predicted_fixed_s", s->fixed, s->fixed > 0);
	write_share(j, "step_s", s->step, s->step > 0);
	json_put_end(j);
}

static void write_reducer(jsonw *j, const report_reducer *r)
{
	const gradcomp_reducer_stats *s = &r->stats;
	double hidden = report_hidden(s);
	json_put_object(j, NULL);
	json_put_string(j, "asked", r->asked);
	json_put_string(j, "compressor", r->compressor);
	json_put_string(j, "collective", r->collective);
	json_put_int(j, "ranks", r->nranks);
	json_put_uint(j, "buckets", s->buckets);
	json_put_uint(j, "delay", r->delay);
	json_put_uint(j, "steps", s->steps);
	json_put_uint(j, "nonfinite_steps", s->nonfinite_steps);
	json_put_float(j, "dense_bytes", s->dense_bytes);
	json_put_float(j, "wire_bytes", s->wire_bytes);
	write_share(j, "ratio", report_ratio(s), report_ratio(s) > 0);
	json_put_float(j, "encode_s", s->encode_s);
	json_put_float(j, "exchange_s", s->exchange_s);
	json_put_float(j, "decode_s", s->decode_s);
	json_put_float(j, "exposed_s", s->exposed_s);
	write_share(j, "hidden", hidden, hidden >= 0);
	write_share(j, "sums_s", r->sums_s, r->sums_s > 0);
	write_share(j, "error_mean", s->error_mean, s->error_steps > 0);
	write_share(j, "error_last", s->error_last, s->error_steps > 0);
	if (r->tuner)
		write_auto(j, r->tuner);
	if (r->schedule)
		write_schedule(j, r->schedule);
	json_put_array(j, "tensors");
	for (uint32_t i = 0; i < r->ntensors; i++) {
		json_put_object(j, NULL);
		json_put_string(j, "name", r->tensors[i].name);
		json_put_uint(j, "numel", r->tensors[i].numel);
		json_put_string(j, "choice", r->tensors[i].choice);
		write_share(j, "error", r->tensors[i].error, r->tensors[i].error >= 0);
		json_put_end(j);
	}
	json_put_end(j);
	json_put_end(j);
}

static void write_coder(jsonw *j, const report_coder *c)
{
	const gradcomp_coder_stats *s = &c->stats;
	json_put_object(j, NULL);
	json_put_string(j, "name", c->name);
	json_put_string(j, "asked", c->asked);
	json_put_string(j, "compressor", c->compressor);
	json_put_string(j, "collective", c->collective);
	json_put_int(j, "ranks", c->nranks);
	json_put_uint(j, "reduce_scatters", s->reduce_scatters);
	json_put_uint(j, "all_gathers", s->all_gathers);
	json_put_uint(j, "nonfinite", s->nonfinite);
	json_put_float(j, "dense_bytes", s->dense_bytes);
	json_put_float(j, "wire_bytes", s->wire_bytes);
	write_share(j, "ratio", s->wire_bytes > 0 ? s->dense_bytes / s->wire_bytes : 0, s->wire_bytes > 0);
	json_put_float(j, "convert_s", s->convert_s);
	json_put_float(j, "exchange_s", s->exchange_s);
	json_put_float(j, "exposed_s", s->exposed_s);
	json_put_uint(j, "slots", s->slots);
	json_put_uint(j, "residual_bytes", s->residual_bytes);
	json_put_end(j);
}

static void write_link_map(jsonw *j, const report_job *job)
{
	json_put_array(j, "link_kinds");
	for (uint32_t i = 0; i < job->nlink_kinds; i++) {
		json_put_object(j, NULL);
		json_put_string(j, "transport", job->link_kinds[i].transport);
		json_put_uint(j, "pairs", job->link_kinds[i].pairs);
		json_put_string(j, "why_not", job->link_kinds[i].why_not);
		json_put_end(j);
	}
	json_put_end(j);
	json_put_array(j, "link_map");
	for (int a = 0; job->link_map && a < job->nranks; a++) {
		json_put_array(j, NULL);
		for (int b = 0; b < job->nranks; b++)
			json_put_string(j, NULL, job->link_map[a * job->nranks + b]);
		json_put_end(j);
	}
	json_put_end(j);
}

static void write_networks(jsonw *j, const report_job *job)
{
	json_put_array(j, "networks");
	for (uint32_t i = 0; i < job->nnetworks; i++) {
		const network_row *n = &job->networks[i];

		json_put_object(j, NULL);
		json_put_string(j, "network", n->name);
		json_put_string(j, "interface", *n->interface ? n->interface : NULL);
		write_share(j, "driver_mbit", n->claimed, n->claimed > 0);
		write_share(j, "measured_mbit", n->rate, n->measured);
		json_put_bool(j, "used", n->chosen);
		json_put_end(j);
	}
	json_put_end(j);
}

/* Seconds a step of each rank. What runs beside something else counts in both. */
static void write_times(jsonw *j, const report_job *job)
{
	json_put_array(j, "times");
	j->flat = 2; /* a line a rank */
	for (int r = 0; job->times && r < job->nranks && job->nranks <= TIMES_RANKS; r++) {
		const rank_times *t = &job->times[r];
		double steps = t->steps > 0 ? t->steps : 1;

		json_put_object(j, NULL);
		json_put_int(j, "rank", r);
		json_put_uint(j, "steps", (uint64_t)t->steps);
		json_put_float(j, "step_s", t->step_s / steps);
		json_put_float(j, "computing_s", (t->own_s - t->load_s) / steps);
		json_put_float(j, "loading_s", t->load_s / steps);
		json_put_float(j, "encoding_s", t->code_s / steps);
		json_put_float(j, "exchanging_s", t->exchange_s / steps);
		json_put_float(j, "waiting_s", t->wait_s / steps);
		json_put_uint(j, "pauses", (uint64_t)t->pauses);
		json_put_float(j, "link_mbit", slow_rank_link(t) > 0 ? slow_rank_link(t) * 8e-6 : NAN);
		json_put_end(j);
	}
	j->flat = 0;
	json_put_end(j);
}

static void write_slowest(jsonw *j, const report_job *job)
{
	const slow_rank *s = &job->slow;
	char why[256];
	if (!s->kind) {
		json_put_null(j, "slowest");
		return;
	}
	slow_rank_evidence(s, why, sizeof why);
	json_put_object(j, "slowest");
	json_put_int(j, "rank", s->rank);
	json_put_string(j, "host", job->slow_host);
	json_put_string(j, "kind", slow_rank_kind(s->kind));
	json_put_float(j, "share", s->share);
	json_put_string(j, "evidence", why);
	json_put_string(j, "advice", slow_rank_advice(s->kind));
	json_put_end(j);
}

void report_write(FILE *out, const report_job *job)
{
	char when[32] = "";
	time_t now = time(NULL);
	struct tm tm;
	jsonw j;
	if (gmtime_r(&now, &tm))
		strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
	json_put_start(&j, out);
	json_put_object(&j, NULL);
	json_put_int(&j, "schema", REPORT_SCHEMA);
	json_put_string(&j, "gradcomp", GRADCOMP_VERSION_STRING);
	json_put_string(&j, "job", job->job_id);
	json_put_string(&j, "step", job->step_id);
	json_put_string(&j, "ended", when);
	json_put_float(&j, "wall_s", job->wall_s);
	json_put_string(&j, "failure", job->failure);
	json_put_int(&j, "ranks", job->nranks);
	json_put_int(&j, "nodes", job->nnodes);
	json_put_array(&j, "hosts");
	for (int i = 0; job->hosts && i < job->nranks; i++)
		json_put_string(&j, NULL, job->hosts[i]);
	json_put_end(&j);
	json_put_array(&j, "links");
	for (uint32_t i = 0; i < job->nlinks; i++) {
		json_put_object(&j, NULL);
		json_put_string(&j, "transport", job->links[i].transport);
		json_put_uint(&j, "connections", job->links[i].connections);
		json_put_uint(&j, "sent_bytes", job->links[i].sent);
		json_put_uint(&j, "received_bytes", job->links[i].received);
		json_put_end(&j);
	}
	json_put_end(&j);
	write_link_map(&j, job);
	write_networks(&j, job);
	json_put_array(&j, "reducers");
	for (uint32_t i = 0; i < job->nreducers; i++)
		write_reducer(&j, &job->reducers[i]);
	json_put_end(&j);
	json_put_array(&j, "coders");
	for (uint32_t i = 0; i < job->ncoders; i++)
		write_coder(&j, &job->coders[i]);
	json_put_end(&j);
	write_times(&j, job);
	write_slowest(&j, job);
	json_put_end(&j);
	json_put_finish(&j);
}
