/* state.h -- the command's part of checkpoints: scalars to be saved, initial weights, and the
 * lines printed at the start of a run. */
#ifndef CLI_TRAIN_STATE_H
#define CLI_TRAIN_STATE_H

#include "cli/train/train.h"

/* Local. The scalars that are equal in every checkpoint of the run; texts are in the session's
 * arena. */
Err train_scalars(TrainSession *s, StateScalars *out);
/* Local. Settles data.tokenizer in the configuration: a file, bytes, or auto if there is none.
 * *out: the file that encodes text; NULL: text is read as bytes. */
Err train_tokenizer(TrainSession *s, const char **out);
/* Local. ERR_CONFIG if text was opened as bytes under a larger vocabulary, and bytes were not asked
 * for. */
Err train_check_bytes(const TrainSession *s, const Dataset *d);
/* Local. Opens model.init as s->init and checks its model. Opens nothing if the run folder has a
 * checkpoint to resume from. */
Err train_init(TrainSession *s);
/* Local, on rank 0. Writes RUN/hf for a run that starts from a Hugging Face folder, or from a run
 * with such a folder: its config.json, and its tokenizer unless the run has another. */
Err train_keep_files(TrainSession *s);
/* Local. Folder, interval and contents of checkpoints. */
SaveSettings train_save_settings(TrainSession *s);
/* Local, on rank 0. Prints the state that the run starts from. */
void report_start(const TrainSession *s, const TrainStart *start);

/* Local. For tests: reads SHEAF_KILL_AT=POINT[:RANK[:STEP]] from the environment. The process kills
 * itself when that rank reaches that point of a save (state/folder.h). ERR_CONFIG lists the
 * points. */
Err kill_at_read(KillAt *out);

#endif
