#include "conformance/kit_findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void send(kit *k, rule r, rule_result v, const char *fmt, va_list ap)
{
	finding m = {.rule = r, .result = v, .since = k->since, .crash_signal = k->crash_signal};
	vsnprintf(m.text, sizeof m.text, fmt, ap);
	if (write(k->out, &m, sizeof m) != sizeof m)
		_exit(4);
}

void kit_ok(kit *k, rule r, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	send(k, r, RESULT_OK, fmt, ap);
	va_end(ap);
}

void kit_fail(kit *k, rule r, const char *fmt, ...)
{
	va_list ap;
	k->failed = true;
	va_start(ap, fmt);
	send(k, r, RESULT_FAIL, fmt, ap);
	va_end(ap);
}

void kit_skip(kit *k, rule r, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	send(k, r, RESULT_SKIP, fmt, ap);
	va_end(ap);
}

/* A plugin is held to the rules of the ABI that it was built for. */
static bool lenient(const kit_result *out, const finding *m)
{
	return out->abi && (out->abi < m->since || out->abi < out->since || out->abi < rule_since(m->rule));
}

void kit_take(kit_result *out, const finding *m)
{
	rule_result *v = &out->result[m->rule],
		    is = m->result == RESULT_FAIL && lenient(out, m) ? RESULT_WARN : m->result;
	/* Many groups meet the same crash: it is told once. */
	if (m->crash_signal && m->crash_signal == out->crash_signal && call_now->which == out->crash_in)
		return;
	if (m->crash_signal) {
		out->crash_signal = m->crash_signal;
		out->crash_in = call_now->which;
	}
	out->asked[m->rule] += is != RESULT_SKIP;
	out->broken[m->rule] += is == RESULT_FAIL;
	if (*v == RESULT_FAIL || (*v == RESULT_WARN && is != RESULT_FAIL) || (*v == RESULT_OK && is == RESULT_SKIP))
		return;
	*v = is;
	memcpy(out->text[m->rule], m->text, sizeof m->text);
}

void kit_note(kit_result *out, rule r, rule_result v, const char *fmt, ...)
{
	finding m = {.rule = r, .result = v};
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(m.text, sizeof m.text, fmt, ap);
	va_end(ap);
	kit_take(out, &m);
}
