"""Trains small SentencePiece models, and records the ids that sentencepiece and transformers give to a list of texts."""
import gzip, json, os, random, sys
import sentencepiece as spm

out = sys.argv[1]
os.makedirs(out, exist_ok=True)
random.seed(3)
words = ["the", "a", "planarian", "worm", "divides", "itself", "and", "each", "piece", "grows", "into", "whole", "head", "tail",
         "once", "again", "naïve", "Größe", "日本", "мир", "123", "3.14", "(x)", "foo_bar"]
lines = [" ".join(random.choice(words) for _ in range(random.randint(3, 14))) for _ in range(600)]
open("corpus.txt", "w").write("\n".join(lines))
# Ligatures, wide letters, and white space that becomes a blank.
rules = {"ﬁ": "fi", "Ａ": "A", "\u3000": " ", "\t": " ", "\n": " ", "e\u0301": "é"}
with open("rules.tsv", "w") as f:
    for a, b in rules.items():
        f.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")

def train(name, **options):
    spm.SentencePieceTrainer.train(input="corpus.txt", model_prefix=f"{out}/{name}", minloglevel=2, hard_vocab_limit=False, **options)
    os.remove(f"{out}/{name}.vocab")

train("unigram", model_type="unigram", vocab_size=150, character_coverage=0.995, normalization_rule_tsv="rules.tsv")
train("unigram_bytes", model_type="unigram", vocab_size=400, byte_fallback=True, add_dummy_prefix=False,
      user_defined_symbols=["<tool>"], remove_extra_whitespaces=False, normalization_rule_name="identity")
train("bpe", model_type="bpe", vocab_size=420, byte_fallback=True, remove_extra_whitespaces=False,
      normalization_rule_name="identity", character_coverage=0.9995)
train("bpe_user", model_type="bpe", vocab_size=200, user_defined_symbols=["<tool>", "foo"], remove_extra_whitespaces=False,
      normalization_rule_tsv="rules.tsv")
train("bpe_blanks", model_type="bpe", vocab_size=420, byte_fallback=True, remove_extra_whitespaces=False, add_dummy_prefix=False,
      normalization_rule_name="identity", character_coverage=0.9995, user_defined_symbols=["▁▁", "▁▁▁", "\n"])

texts = ["", " ", "the planarian worm", "  two  blanks at both ends  ", "naïve e\u0301 Größe 日本語 мир", "ﬁre Ａ\u3000b\tc\nd\r\n",
         "💥💥 x 💥", "<tool>the<tool> worm <tool>", "</s> <unk> <0x41> <s>", "foobar foo_bar foofoo", "3.14159", "a" * 40, "▁the ▁ ▁▁x", "\u200b\u0000"]
alphabet = ["the", " ", " ", "  ", "worm", "pl", "an", "ari", "a", "aa", "ï", "日", "💥", "\n", "3", ".", "1", "(", "foo", "bar", "_", "gr", "ow", "s", "qz", "e"]
texts += ["".join(random.choice(alphabet) for _ in range(random.randint(1, 30))) for _ in range(200)]
cases = {}
for name in ["unigram", "unigram_bytes", "bpe", "bpe_user", "bpe_blanks"]:
    model = spm.SentencePieceProcessor(model_file=f"{out}/{name}.model")
    cases[name] = {"ids": [model.encode(t) for t in texts], "text": [model.decode(model.encode(t)) for t in texts], "frame": [model.bos_id(), model.eos_id(), model.pad_id()]}

# Byte-level pairs, as GPT-2 and Qwen2 cut text.
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
os.makedirs(f"{out}/pairs", exist_ok=True)
bpe.model.save(f"{out}/pairs")
for kind, config in [("gpt2", {"tokenizer_class": "GPT2Tokenizer"}), ("qwen2", {"tokenizer_class": "Qwen2Tokenizer"}), ("opt", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True})]:
    json.dump(config, open(f"{out}/pairs/tokenizer_config.json", "w"))
    json.dump({"model_type": "gpt2" if kind != "qwen2" else "qwen2"}, open(f"{out}/pairs/config.json", "w"))
    t = AutoTokenizer.from_pretrained(f"{out}/pairs")
    cases[kind] = {"ids": [t.encode(x, add_special_tokens=False) for x in texts], "config": config, "frame": [t.bos_token_id, t.eos_token_id, t.pad_token_id]}
os.remove(f"{out}/pairs/tokenizer_config.json"); os.remove(f"{out}/pairs/config.json")
with gzip.open(f"{out}/cases.json.gz", "wt") as f:
    json.dump({"texts": texts, "models": cases}, f, ensure_ascii=True)
