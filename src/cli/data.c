/* data.c -- `sheaf data`: dispatch to build, show and check, and their usage text. */
#include "cli/data.h"

#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "cli/verbs.h"

static const char *const usage =
    "sheaf data build IN... -o OUT    convert text and JSONL files to a token file\n"
    "    --tokenizer bytes            one token per byte, a vocabulary of 256 (the default)\n"
    "    --tokenizer FILE             a tokenizer.json or its folder: byte-level BPE of GPT-2, "
    "Llama\n"
    "                                 3, Qwen\n"
    "    --format tokens              llm.c's format (the default): a special token starts each\n"
    "                                 document; bytes have none, and documents are joined\n"
    "    --format megatron            OUT.bin and OUT.idx; keeps the document borders\n"
    "    --from auto|text|jsonl       format of IN; auto: by its name. A text is one document,\n"
    "                                 each line of JSONL is one, in its field \"text\"\n"
    "    --eot TOKEN|none             the token between documents: before each in the format\n"
    "                                 tokens, after each in megatron. Default: <|endoftext|>,\n"
    "                                 <|end_of_text|> or </s>; none if the tokenizer adds a token\n"
    "                                 of its own there\n"
    "    --threads N                  tokenizer threads (all cores); the result is the same\n"
    "sheaf data show FILE...          print format, tokens, documents, ids and first tokens\n"
    "    --tokenizer FILE             decodes the first tokens\n"
    "sheaf data check FILE...         read the whole file; exit status 1 if it is damaged\n"
    "    --vocab N                    ids must be below N\n"
    "    --format F                   (show, check) auto, text, jsonl, tokens, megatron, uint16 "
    "or\n"
    "                                 uint32, as data.format";

int verb_data(int argc, char **argv)
{
    static const char *const names[] = {"build", "show", "check"};
    int (*const run[])(int, char **) = {data_build, data_show, data_check};
    const char *word = argc > 1 ? argv[1] : "";
    for (int i = 0; i < 3; i++)
        if (strcmp(word, names[i]) == 0) return run[i](argc - 1, argv + 1);
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        puts(usage);
        return 0;
    }
    const char *nearest = text_nearest(word, names, 3);
    return cli_fail(err_fail(ERR_CONFIG,
                             "data: %.80s%sneeds build, show or check%s%s%s; `sheaf data --help` "
                             "describes them",
                             word, *word ? ": " : "", nearest ? " (did you mean " : "",
                             nearest ? nearest : "", nearest ? "?)" : ""));
}
