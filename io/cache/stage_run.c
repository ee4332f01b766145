/* The state of one call and what it tells the caller. */
#include "base/clock.h"
#include "io/cache/cache.h"

#include <stdarg.h>
#include <stdio.h>

/* From here on it is worth a line. */
#define SILENT_MS 5000

static int report(stage_run *run, const char *notice)
{
	double now = clock_now();
	const gradcomp_stage_progress p = {
		.struct_size = sizeof p,
		.phase = notice ? GRADCOMP_STAGE_NOTICE : run->phase,
		.files = atomic_load(&run->files),
		.bytes = atomic_load(&run->bytes),
		.files_total = run->files_total,
		.bytes_total = run->bytes_total,
		.seconds = now - run->phase_begin,
		.pid = run->pid,
		.notice = notice,
	};
	run->last_call = now;
	return run->options->progress ? run->options->progress(run->options->ctx, &p) : 0;
}

void stage_run_phase(stage_run *run, gradcomp_stage_phase phase, uint64_t files, uint64_t bytes)
{
	run->phase = phase;
	run->phase_begin = clock_now();
	run->last_call = 0;
	run->files_total = files;
	run->bytes_total = bytes;
	atomic_store(&run->files, 0);
	atomic_store(&run->bytes, 0);
}

/* A server that is away may come back: the user is told that one waits for it. */
static void tell_silence(stage_run *run)
{
	unsigned ms = run->reads ? source_silent(run->reads) : 0;
	if (ms >= SILENT_MS && !run->silent)
		stage_run_notice(run, "the server of %s has not answered for %u s; waiting for it (setting stage.source_timeout)",
		                 run->source ? run->source : "the source", ms / 1000);
	else if (!ms && run->silent)
		stage_run_notice(run, "the server of %s answers again", run->source ? run->source : "the source");
	run->silent = ms >= SILENT_MS || (ms && run->silent);
}

gradcomp_status stage_run_tick(stage_run *run, gradcomp_error *err)
{
	if (clock_now() - run->last_call < 0.1)
		return GRADCOMP_OK;
	tell_silence(run);
	if (!report(run, NULL))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_STATE, "stopped before the copy was complete");
}

static int wants_stop(void *run)
{
	return stage_run_tick(run, NULL) != 0;
}

source_wait stage_run_wait(stage_run *run)
{
	return (source_wait){wants_stop, run};
}

void stage_run_notice(stage_run *run, const char *fmt, ...)
{
	char text[sizeof((gradcomp_error *)0)->text];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	report(run, text);
}
