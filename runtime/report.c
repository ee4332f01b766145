#include "report.h"

#include "outfile.h"
#include "report_text.h"

/* Room taken at the start: a report of some ten thousand tensors. */
#define REPORT_ROOM (1 << 20)

gradcomp_status report_open(const char *path, report **out, gradcomp_error *err)
{
	return outfile_open("report", path, REPORT_ROOM, out, err);
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
