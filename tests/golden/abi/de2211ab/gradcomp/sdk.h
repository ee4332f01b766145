/* gradcomp/sdk.h: what compressors share, for plugin authors: all headers of gradcomp/sdk/.
 *
 * A plugin needs none of it. One that uses it includes this or single headers and links the
 * archive, which pkg-config calls gradcomp-sdk and CMake gradcomp::sdk:
 *
 *     cc -shared -fPIC -fvisibility=hidden -ffp-contract=off mine.c -o mine.so \
 *         $(pkg-config --cflags --libs gradcomp-sdk)
 *
 * The archive becomes a part of the plugin. Its symbols are hidden there, so that plugins
 * with different releases of it do not meet, and an installed plugin never changes under
 * its author. Between releases names may change; CHANGELOG.md says which.
 *
 * Common to all:
 * - Names begin with sdk_. Headers are C11 and C++17, but for rows of parameter tables
 *   (SDK_..._ROW), which are C's.
 * - Functions that take a gradcomp_work, or operators and a queue, work wherever that is, by
 *   operators alone. Others read and write host memory.
 * - Nothing allocates but what says that it is for create(). Nothing keeps a pointer that it
 *   was given, but for host and layout, which outlive an instance.
 * - There are no globals. A function may run on any thread, at the same time as others on
 *   other memory; what is said in gradcomp/compressor.h of the plugin's function that calls it
 *   holds for it as well.
 * - What can fail returns a gradcomp_status and fills the error by host->fail(); names in
 *   messages are the plugin's, which it gives.
 * - What comes from a peer or from a file is `in`, and can be anything.
 */
#ifndef GRADCOMP_SDK_H
#define GRADCOMP_SDK_H

#include "gradcomp/sdk/bits.h"
#include "gradcomp/sdk/coded.h"
#include "gradcomp/sdk/growbuf.h"
#include "gradcomp/sdk/hash.h"
#include "gradcomp/sdk/log_levels.h"
#include "gradcomp/sdk/lowrank.h"
#include "gradcomp/sdk/needs.h"
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/planes.h"
#include "gradcomp/sdk/random_stream.h"
#include "gradcomp/sdk/residual.h"
#include "gradcomp/sdk/scratch.h"
#include "gradcomp/sdk/signs.h"
#include "gradcomp/sdk/sketch.h"
#include "gradcomp/sdk/sparse.h"
#include "gradcomp/sdk/state.h"

#endif
