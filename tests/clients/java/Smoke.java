import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Java kafka-clients: admin, idempotent produce in every codec, read back by assign; the word list.
 *
 * <p>Called as the other smokes are: see drive.sh.
 */
public final class Smoke {
    static final int PARTITIONS = 6;
    private static final int RECORDS = 3000;
    /** A moment ago: old enough for a search by time, too young for any retention. */
    private static final long FIRST_TIMESTAMP_MS = System.currentTimeMillis() - 60_000;

    private final String brokers;

    private Smoke(String brokers) {
        this.brokers = brokers;
    }

    public static void main(String[] args) throws Exception {
        Smoke smoke = new Smoke(args[0]);
        switch (args[1]) {
            case "smoke" -> smoke.everyCodec();
            case "produce" -> Words.produce(args[0], args[2], args[3]);
            case "read" -> Words.read(args[0], args[2], args[3]);
            default -> throw new IllegalArgumentException(args[1]);
        }
    }

    private void everyCodec() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", brokers))) {
            must(admin.describeCluster().nodes().get(10, TimeUnit.SECONDS).size() == 3, "three nodes in DescribeCluster");
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                run(admin, codec);
            }
        }
    }

    private void run(Admin admin, String codec) throws Exception {
        String topic = "java-" + codec;
        // Two partitions fewer than are due: CreatePartitions adds them.
        NewTopic wanted = new NewTopic(topic, PARTITIONS - 2, (short) 3).configs(Map.of("min.insync.replicas", "2"));
        admin.createTopics(List.of(wanted)).all().get(30, TimeUnit.SECONDS);
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(PARTITIONS))).all().get(30, TimeUnit.SECONDS);
        until("six partitions with a leader and three replicas", () -> described(admin, topic));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "86400000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get(10, TimeUnit.SECONDS);
        until("the altered config", () -> {
            var config = admin.describeConfigs(List.of(resource)).all().get(10, TimeUnit.SECONDS).get(resource);
            return config.get("retention.ms").value().equals("86400000") && config.get("min.insync.replicas").value().equals("2");
        });

        List<ProducerRecord<byte[], byte[]>> sent = plan(topic);
        produce(codec, sent);
        consume(topic, sent);

        admin.deleteTopics(List.of(topic)).all().get(30, TimeUnit.SECONDS);
        until("the deleted topic leaves the list", () -> !admin.listTopics().names().get(10, TimeUnit.SECONDS).contains(topic));
        System.out.println("java " + codec + ": " + sent.size() + " records");
    }

    private static boolean described(Admin admin, String topic) throws Exception {
        try {
            TopicDescription found = admin.describeTopics(List.of(topic)).allTopicNames().get(10, TimeUnit.SECONDS).get(topic);
            return found.partitions().size() == PARTITIONS
                && found.partitions().stream().allMatch(one -> one.leader() != null && one.replicas().size() == 3);
        } catch (java.util.concurrent.ExecutionException error) {
            if (error.getCause() instanceof UnknownTopicOrPartitionException) {
                return false;
            }
            throw error;
        }
    }

    private static List<ProducerRecord<byte[], byte[]>> plan(String topic) {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int number = 0; number < RECORDS; number++) {
            byte[] key = switch (number % 4) {
                case 0 -> null;
                case 1 -> new byte[0];
                case 2 -> bytes("key-" + number % 17);
                default -> ByteBuffer.allocate(6).putShort((short) 0xff00).putInt(number).array();
            };
            byte[] value = switch (number % 50) {
                case 7 -> null;
                case 11 -> new byte[0];
                case 13 -> patterned(2_000 + number * 7);
                case 17 -> new byte[30_000];
                default -> bytes(topic + "/" + number);
            };
            List<Header> headers = new ArrayList<>();
            if (number % 3 == 0) {
                headers.add(new RecordHeader("trace", bytes(Integer.toString(number))));
                headers.add(new RecordHeader("trace", bytes("again")));
                headers.add(new RecordHeader("empty", new byte[0]));
                headers.add(new RecordHeader("none", (byte[]) null));
            }
            records.add(new ProducerRecord<>(topic, number % PARTITIONS, FIRST_TIMESTAMP_MS + number, key, value, headers));
        }
        return records;
    }

    static KafkaProducer<byte[], byte[]> producer(String brokers, String codec) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", brokers);
        config.put("acks", "all");
        config.put("enable.idempotence", true);
        config.put("compression.type", codec);
        config.put("linger.ms", 5);
        config.put("key.serializer", ByteArraySerializer.class);
        config.put("value.serializer", ByteArraySerializer.class);
        return new KafkaProducer<>(config);
    }

    static KafkaConsumer<byte[], byte[]> consumer(String brokers) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", brokers);
        config.put("enable.auto.commit", false);
        config.put("key.deserializer", ByteArrayDeserializer.class);
        config.put("value.deserializer", ByteArrayDeserializer.class);
        return new KafkaConsumer<>(config);
    }

    private void produce(String codec, List<ProducerRecord<byte[], byte[]>> records) throws Exception {
        List<Future<RecordMetadata>> acks = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(brokers, codec)) {
            records.forEach(record -> acks.add(producer.send(record)));
            producer.flush();
        }
        long[] next = new long[PARTITIONS];
        for (Future<RecordMetadata> ack : acks) {
            RecordMetadata acked = ack.get(30, TimeUnit.SECONDS);
            must(acked.offset() == next[acked.partition()]++, "acked at offset " + acked.offset());
        }
    }

    private void consume(String topic, List<ProducerRecord<byte[], byte[]>> sent) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            partitions.add(new TopicPartition(topic, partition));
        }
        List<List<ConsumerRecord<byte[], byte[]>>> read = new ArrayList<>();
        partitions.forEach(partition -> read.add(new ArrayList<>()));
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(brokers)) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
            int count = 0;
            while (count < sent.size() && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    read.get(record.partition()).add(record);
                    count++;
                }
            }
            Collection<Long> ends = consumer.endOffsets(partitions).values();
            must(ends.stream().allMatch(end -> end == RECORDS / PARTITIONS), "end offsets " + ends);
            long half = RECORDS / 2;
            var byTime = consumer.offsetsForTimes(Map.of(partitions.get(0), FIRST_TIMESTAMP_MS + half));
            must(byTime.get(partitions.get(0)).offset() == (half + PARTITIONS - 1) / PARTITIONS, "offset for a time: " + byTime);
        }
        int[] next = new int[PARTITIONS];
        for (ProducerRecord<byte[], byte[]> want : sent) {
            List<ConsumerRecord<byte[], byte[]>> found = read.get(want.partition());
            int place = next[want.partition()]++;
            must(place < found.size(), "partition " + want.partition() + ": read only " + found.size());
            ConsumerRecord<byte[], byte[]> have = found.get(place);
            String where = "partition " + want.partition() + ", offset " + place + ": ";
            must(have.offset() == place, where + "stands at " + have.offset());
            must(Arrays.equals(want.key(), have.key()), where + "the key changed");
            must(Arrays.equals(want.value(), have.value()), where + "the value changed");
            must(want.headers().equals(have.headers()), where + "headers changed to " + have.headers());
            must(want.timestamp() == have.timestamp(), where + "the timestamp changed to " + have.timestamp());
        }
        for (int partition = 0; partition < PARTITIONS; partition++) {
            must(read.get(partition).size() == next[partition], "partition " + partition + ": read more than was sent");
        }
    }

    private interface Look {
        boolean holds() throws Exception;
    }

    private static void until(String message, Look look) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
        while (!look.holds()) {
            must(System.nanoTime() < deadline, message + ": not within 10 s");
            Thread.sleep(50);
        }
    }

    static void must(boolean holds, String message) {
        if (!holds) {
            throw new IllegalStateException(message);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] patterned(int length) {
        byte[] bytes = new byte[length];
        for (int at = 0; at < length; at++) {
            bytes[at] = (byte) (at * 31 + at / 97);
        }
        return bytes;
    }
}
